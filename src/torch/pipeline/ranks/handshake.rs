//! Exchange of devices and settings when a pipeline is built over several processes.

use gpipe_partitioner::DeviceId;
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::TorchError;
use crate::error::{Error, Setting, SettingsError};
use crate::world::{World, gather_once};
use gpipe_engine::EngineError;

/// The devices of a pipeline: those of rank 0, then those of rank 1, and so on.
#[derive(Debug, Clone)]
pub(in crate::pipeline) struct Members {
    pub(in crate::pipeline) devices: Vec<Device>,
    /// Rank of each device.
    pub(in crate::pipeline) rank_of: Vec<usize>,
    /// Devices of all processes that may use the same cores as this one.
    pub(in crate::pipeline) same_cores: Vec<Device>,
    rank: usize,
}

/// Description of a process, sent to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Member {
    host: String,
    /// Cores that it may use.
    cores: Vec<usize>,
    /// CUDA devices by number; `None` for the CPU.
    devices: Vec<Option<usize>>,
    /// Names and values of settings that must be equal everywhere.
    settings: Vec<(String, String)>,
    /// Reason why it cannot take part.
    refused: Option<String>,
}

impl Members {
    /// Describes a single process.
    pub(in crate::pipeline) fn alone(devices: &[Device]) -> Self {
        Self {
            devices: devices.to_vec(),
            rank_of: vec![0; devices.len()],
            same_cores: devices.to_vec(),
            rank: 0,
        }
    }

    /// Exchanges the descriptions of all processes.
    ///
    /// # Errors
    /// The refusal of this or of another process; settings that differ; a process that is lost.
    pub(in crate::pipeline) fn meet(
        world: &World,
        devices: &[Device],
        settings: Vec<(String, String)>,
        own: Result<(), Error>,
    ) -> Result<Self, Error> {
        let member = Member {
            host: world.host().to_owned(),
            cores: crate::allowed_cores(),
            devices: devices.iter().map(number).collect(),
            settings,
            refused: own.as_ref().err().map(ToString::to_string),
        };
        let odd = |why: String| TorchError::new(format!("where processes meet: {why}"));
        let said = serde_json::to_vec(&member).map_err(|error| odd(error.to_string()))?;
        let all = gather_once(world, &said).map_err(EngineError::from)?;
        let all: Result<Vec<Member>, _> = all
            .iter()
            .map(|said| serde_json::from_slice(said))
            .collect();
        let all = all.map_err(|error| odd(error.to_string()))?;
        if let Err(error) = own.and_then(|()| check(&all)) {
            // All have found the error. Wait once more, so that a process that ends now is not lost
            // to those still reading the descriptions.
            let _ = gather_once(world, &[]);
            return Err(error);
        }
        let mut members = Self {
            devices: Vec::new(),
            rank_of: Vec::new(),
            same_cores: Vec::new(),
            rank: world.rank(),
        };
        for (rank, other) in all.iter().enumerate() {
            let devices = other.devices.iter();
            let devices = devices.map(|device| device.map_or(Device::Cpu, Device::Cuda));
            if (&other.host, &other.cores) == (&member.host, &member.cores) {
                members.same_cores.extend(devices.clone());
            }
            members.rank_of.extend(devices.clone().map(|_| rank));
            members.devices.extend(devices);
        }
        Ok(members)
    }

    /// Returns the devices of this process, by their numbers in the whole pipeline.
    pub(in crate::pipeline) fn here(&self) -> impl Iterator<Item = (DeviceId, Device)> {
        let all = self.devices.iter().zip(&self.rank_of).enumerate();
        let here = all.filter(|(_, (_, rank))| **rank == self.rank);
        here.map(|(number, (device, _))| (DeviceId(number), *device))
    }

    /// Returns, by device, the number of this process's CUDA device, if it is one.
    pub(in crate::pipeline) fn gpus(&self) -> Vec<Option<usize>> {
        let mut gpus = vec![None; self.devices.len()];
        for (place, device) in self.here() {
            gpus[place.index()] = number(&device);
        }
        gpus
    }

    pub(in crate::pipeline) fn is_here(&self, device: DeviceId) -> bool {
        self.rank_of[device.index()] == self.rank
    }
}

fn number(device: &Device) -> Option<usize> {
    match device {
        Device::Cuda(number) => Some(*number),
        _ => None,
    }
}

fn check(all: &[Member]) -> Result<(), Error> {
    for (rank, member) in all.iter().enumerate() {
        if let Some(why) = &member.refused {
            let why = why.clone();
            return Err(EngineError::Elsewhere { rank, why }.into());
        }
    }
    let Some((first, others)) = all.split_first() else {
        return Ok(());
    };
    for (rank, other) in (1..).zip(others) {
        let pairs = first.settings.iter().zip(&other.settings);
        let different = pairs.filter(|(own, other)| own != other);
        let Some(((name, own), (_, theirs))) = different.into_iter().next() else {
            continue;
        };
        let why = format!(
            "{name} is {theirs} in rank {rank} and {own} in rank 0: all processes of a pipeline \
             have the same model and settings, and devices of their own"
        );
        return Err(SettingsError::invalid(Setting::World, why).into());
    }
    Ok(())
}
