//! Placement of stages on the engine's devices, and checks of it.

use super::failure::EngineError;
use super::handle::Engine;
use super::mesh::Mesh;
use super::program::Program;
use super::stage::Stage;
use gpipe_partitioner::{DeviceId, StageId};

impl<S: Stage> Engine<S> {
    /// The devices of the pipeline or of its replicas, including those of other processes.
    pub fn mesh(&self) -> Mesh {
        self.shared.inboxes.mesh()
    }

    /// Number of stages on all devices of this process; each copy counts.
    pub fn stages(&self) -> usize {
        self.placement.iter().map(Vec::len).sum()
    }

    /// The device of `stage`, if this process has such a stage; of several copies, that of the
    /// first replica.
    pub fn device_of(&self, stage: StageId) -> Option<DeviceId> {
        self.copies_of(stage).next()
    }

    /// The devices of this process that have `stage`, in the order of replicas.
    pub fn copies_of(&self, stage: StageId) -> impl Iterator<Item = DeviceId> {
        let devices = self.shared.devices().iter().zip(&self.placement);
        devices.filter_map(move |(device, here)| here.contains(&stage).then_some(*device))
    }

    /// Stages on a replica's devices in this process.
    fn stages_of(&self, replica: usize) -> Vec<StageId> {
        let mesh = self.mesh();
        let devices = self.shared.devices().iter().zip(&self.placement);
        let own = devices.filter(|(device, _)| mesh.replica_of(**device) == replica);
        own.flat_map(|(_, stages)| stages).copied().collect()
    }

    /// Checks that each replica has each stage once; all stages, if there is no carrier.
    pub(super) fn check_placement(&self) -> Result<(), EngineError> {
        let mesh = self.mesh();
        let here: Vec<_> = (0..mesh.replicas())
            .map(|own| self.stages_of(own))
            .collect();
        let most = here.iter().map(Vec::len).max().unwrap_or_default();
        for (replica, here) in here.into_iter().enumerate() {
            let wanted = match self.shared.carrier {
                Some(_) => here.clone(),
                None => (0..most).map(StageId).collect(),
            };
            for stage in wanted {
                let times = here.iter().filter(|present| **present == stage).count();
                if times != 1 {
                    return Err(EngineError::Placement {
                        stage,
                        replica: (mesh.replicas() > 1).then_some(replica),
                        times,
                        stages: here.len(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Checks that `program` is for these devices and stages.
    pub(super) fn check_fit(&self, program: &Program) -> Result<(), EngineError> {
        let schedule = || program.schedules.name.clone();
        let (wanted, present) = (program.mesh(), self.mesh());
        if wanted.devices() != present.devices() {
            return Err(EngineError::Devices {
                schedule: schedule(),
                wanted: wanted.devices(),
                present: present.devices(),
            });
        }
        if wanted != present {
            return Err(EngineError::Replicas {
                schedule: schedule(),
                wanted: wanted.replicas(),
                present: present.replicas(),
            });
        }
        for (&device, present) in self.shared.devices().iter().zip(&self.placement) {
            let wanted = &program.device(device).stages;
            if wanted != present {
                let plain = |stages: &[StageId]| stages.iter().map(|s| s.index()).collect();
                let (wanted, present) = (plain(wanted), plain(present));
                return Err(EngineError::Stages {
                    schedule: schedule(),
                    device,
                    wanted,
                    present,
                });
            }
        }
        Ok(())
    }
}
