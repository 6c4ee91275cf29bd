//! What is asked of devices: memory that they may hold, what waits in the host's memory,
//! and how they compute.

use std::fmt;
use std::str::FromStr;

use gpipe_partitioner::Bytes;
use tch::Device;

use super::values::truth;
use crate::PipelineBuilder;

/// The part of a recipe that is about devices.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DeviceOptions {
    /// The most that CUDA devices may hold, such as 24GiB, as if the cards had no more: one
    /// value for all, or a value or `none` for each of --devices. Where a card is named
    /// several times, what its entries may hold adds up.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub(super) memory: Vec<Cap>,
    /// Stages that keep what they need for the backward (activations, or what they recompute
    /// from) in the host's memory meanwhile: their numbers, such as 0,2, or all or none. It
    /// changes no numbers.
    #[arg(
        long,
        value_name = "STAGES",
        default_value = "none",
        allow_hyphen_values = true
    )]
    pub(super) offload: Offload,
    /// Whether what the optimizer remembers (AdamW's two means) is in the host's memory
    /// between steps. It changes no numbers.
    #[arg(
        long, value_name = "BOOL", default_value = "false", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, value_parser = truth, action = clap::ArgAction::Set
    )]
    pub(super) offload_optimizer: bool,
    /// Whether CUDA devices may round what they multiply to TF32 (10 bits behind the
    /// point), which is several times as fast.
    #[arg(
        long, value_name = "BOOL", default_value = "false", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, value_parser = truth, action = clap::ArgAction::Set
    )]
    pub(super) tf32: bool,
    /// Whether only operators are used that give the same bits each time, also on CUDA
    /// devices, where some others are faster. On the CPU all do.
    #[arg(
        long, value_name = "BOOL", default_value = "false", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, value_parser = truth, action = clap::ArgAction::Set
    )]
    pub(super) deterministic: bool,
}

/// What a device may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cap(Option<Bytes>);

impl FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self(None)),
            other => match other.parse::<Bytes>().map_err(|error| error.to_string())? {
                Bytes(0) => Err("must be more than nothing; `none` is without a limit".to_owned()),
                bytes => Ok(Self(Some(bytes))),
            },
        }
    }
}

/// Reads back as the same: in the largest unit of which it is a whole number.
impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Bytes(bytes)) = self.0 else {
            return f.write_str("none");
        };
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let whole = |(_, power): &(&str, u32)| bytes.is_multiple_of(1 << power);
        match units.into_iter().find(whole) {
            Some((unit, power)) => write!(f, "{}{unit}", bytes >> power),
            None => write!(f, "{bytes}B"),
        }
    }
}

/// The stages whose activations wait in the host's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Offload {
    #[default]
    None,
    All,
    /// By number, each once and in order.
    Stages(Vec<usize>),
}

impl FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let part = part.trim();
            part.parse().map_err(|_| {
                format!(
                    "`{part}` is no stage: give the numbers of stages, from 0, such as 0,2, or \
                     `all` or `none`"
                )
            })
        };
        match text.trim() {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            list => {
                let mut stages = list.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
                stages.sort_unstable();
                stages.dedup();
                Ok(Self::Stages(stages))
            }
        }
    }
}

impl Offload {
    /// The numbers of the stages, of so many.
    fn of(&self, stages: usize) -> Vec<usize> {
        match self {
            Self::None => Vec::new(),
            Self::All => (0..stages).collect(),
            Self::Stages(own) => own.clone(),
        }
    }

    /// Whether there are such stages among so many.
    pub(super) fn fits(&self, stages: usize) -> bool {
        self.of(stages).iter().all(|stage| *stage < stages)
    }
}

impl DeviceOptions {
    /// Whether these devices can have these limits.
    ///
    /// # Errors
    /// Which one cannot, in words.
    pub(super) fn check_memory(&self, devices: &[Device]) -> Result<(), String> {
        let (caps, count) = (self.memory.len(), devices.len());
        if caps > 1 && caps != count {
            return Err(format!(
                "--memory has {caps} values, but --devices names {count}: give one for all, or one \
                 for each"
            ));
        }
        if caps == 0 {
            return Ok(());
        }
        if !devices.iter().any(|device| device.is_cuda()) {
            return Err(
                "--memory limits what CUDA devices may hold, and --devices has none: the CPU's \
                 memory is the system's to limit (`ulimit -v`, a container)"
                    .to_owned(),
            );
        }
        let capped = |(device, cap): &(&Device, &Cap)| **device == Device::Cpu && cap.0.is_some();
        let wrong = devices
            .iter()
            .zip(&self.memory)
            .position(|pair| capped(&pair));
        match wrong.filter(|_| caps > 1) {
            Some(place) => Err(format!(
                "--memory gives {} to device {place}, which is a CPU: its memory is the system's to \
                 limit, so say `none` there",
                self.memory[place]
            )),
            None => Ok(()),
        }
    }

    /// Whether there are the stages that are to offload.
    ///
    /// # Errors
    /// Which one is not, in words.
    pub(super) fn check_offload(&self, stages: usize) -> Result<(), String> {
        let missing = self
            .offload
            .of(stages)
            .into_iter()
            .find(|own| *own >= stages);
        match missing {
            Some(stage) => Err(format!(
                "--offload names stage {stage}, but there are {stages}, numbered from 0"
            )),
            None => Ok(()),
        }
    }

    /// What is asked for and does nothing on these devices, in words.
    pub(super) fn idle(&self, devices: &[Device]) -> Option<String> {
        let idle = self.tf32 && !devices.iter().any(|device| device.is_cuda());
        idle.then(|| {
            "pipeline.tf32 = true does nothing here: it is for CUDA devices, and there is none"
                .to_owned()
        })
    }

    /// Asks a pipeline of these devices and so many stages for all of it.
    pub(super) fn ask(
        &self,
        builder: PipelineBuilder,
        devices: &[Device],
        stages: usize,
    ) -> PipelineBuilder {
        let mut builder = builder.offload(&self.offload.of(stages));
        if let [cap] = self.memory[..] {
            let of = |device: &Device| cap.0.filter(|_| device.is_cuda());
            builder = builder.memory_limits(&devices.iter().map(of).collect::<Vec<_>>());
        } else if !self.memory.is_empty() {
            let caps: Vec<_> = self.memory.iter().map(|cap| cap.0).collect();
            builder = builder.memory_limits(&caps);
        }
        // Both are settings of the process, which may be others' too: only what is asked for.
        if self.tf32 {
            builder = builder.tf32(true);
        }
        if self.deterministic {
            builder = builder.deterministic(true);
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe::Recipe;
    use super::*;

    fn asked(memory: &str) -> DeviceOptions {
        let defaults = Recipe::defaults().unwrap().on_devices;
        let memory = memory.split(',').map(|cap| cap.parse().unwrap());
        DeviceOptions {
            memory: memory.collect(),
            ..defaults
        }
    }

    #[test]
    fn a_cap_reads_back_as_the_same() {
        for (text, written) in [
            ("24GiB", "24GiB"),
            ("1.5 GiB", "1536MiB"),
            ("1 GB", "1000000000B"),
            ("2048", "2KiB"),
            ("none", "none"),
        ] {
            let cap: Cap = text.parse().unwrap();
            assert_eq!(cap.to_string(), written);
            assert_eq!(written.parse(), Ok(cap));
        }
        assert!("0".parse::<Cap>().is_err());
        assert!("much".parse::<Cap>().is_err());
    }

    #[test]
    fn caps_fit_the_devices_that_they_are_for() {
        let (gpu, cpu) = (Device::Cuda(0), Device::Cpu);
        let check = |memory: &str, devices: &[Device]| asked(memory).check_memory(devices);
        assert_eq!(check("24GiB", &[gpu, cpu]), Ok(()));
        assert_eq!(check("24GiB,none", &[gpu, cpu]), Ok(()));
        assert_eq!(check("24GiB,16GiB", &[gpu, gpu]), Ok(()));
        for (memory, devices, wanted) in [
            ("24GiB", &[cpu, cpu][..], "has none"),
            ("1GiB,2GiB", &[gpu], "has 2 values, but --devices names 1"),
            ("1GiB,2GiB", &[gpu, cpu], "2GiB to device 1, which is a CPU"),
        ] {
            let error = check(memory, devices).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn stages_to_offload_are_numbers_or_a_word() {
        let stages = |text: &str| text.parse::<Offload>().map(|own| own.of(3));
        assert_eq!(stages("none"), Ok(vec![]));
        assert_eq!(stages("all"), Ok(vec![0, 1, 2]));
        assert_eq!(stages("2, 0,2"), Ok(vec![0, 2]));
        for wrong in ["", "some", "-1", "0,", "1.5"] {
            assert!(
                stages(wrong).unwrap_err().contains("is no stage"),
                "{wrong}"
            );
        }
        let own: Offload = "3".parse().unwrap();
        assert!(!own.fits(3) && own.fits(4));
    }
}
