//! What is asked of devices: memory that they may hold, what waits in the host's memory,
//! and how they compute.

use std::fmt;
use std::str::FromStr;

use gpipe_partitioner::Bytes;
use tch::Device;

use super::recipe::Recipe;
use crate::PipelineBuilder;
use crate::cli::config::form::One;
use crate::cli::config::{Kind, Value};

/// What a device may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cap(Option<Bytes>);

pub(super) const CAP: One<Cap> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |cap| Value::Text(cap.to_string()),
};

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

pub(super) const OFFLOAD: One<Offload> = One {
    kind: Kind::List,
    parse: |text| text.parse(),
    write: |offload| match offload {
        Offload::None => Value::Text("none".to_owned()),
        Offload::All => Value::Text("all".to_owned()),
        Offload::Stages(own) => Value::List(own.iter().map(Value::whole).collect()),
    },
};

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
    pub(super) fn of(&self, stages: usize) -> Vec<usize> {
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

/// Whether these devices can have these limits.
pub(super) fn fits(caps: &[Cap], devices: &[Device]) -> bool {
    check_memory(caps, devices).is_ok()
}

/// Whether these devices can have these limits.
///
/// # Errors
/// Which one cannot, in words.
pub(super) fn check_memory(caps: &[Cap], devices: &[Device]) -> Result<(), String> {
    let (given, count) = (caps.len(), devices.len());
    if given > 1 && given != count {
        return Err(format!(
            "--memory has {given} values, but --devices names {count}: give one for all, or one \
             for each"
        ));
    }
    if given == 0 {
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
    let wrong = devices.iter().zip(caps).position(|pair| capped(&pair));
    match wrong.filter(|_| given > 1) {
        Some(place) => Err(format!(
            "--memory gives {} to device {place}, which is a CPU: its memory is the system's to \
             limit, so say `none` there",
            caps[place]
        )),
        None => Ok(()),
    }
}

/// Has devices hold no more than this: one limit is for all that can have one.
pub(super) fn limits(
    builder: PipelineBuilder,
    caps: &[Cap],
    devices: &[Device],
) -> PipelineBuilder {
    let limits: Vec<_> = match caps {
        [] => return builder,
        [cap] => {
            let of = |device: &Device| cap.0.filter(|_| device.is_cuda());
            devices.iter().map(of).collect()
        }
        caps => caps.iter().map(|cap| cap.0).collect(),
    };
    builder.memory_limits(&limits)
}

impl Recipe {
    /// Whether there are the stages that are to offload.
    ///
    /// # Errors
    /// Which one is not, in words.
    pub(super) fn check_offload(&self) -> Result<(), String> {
        let stages = self.stages();
        let named = self.offload.of(stages);
        match named.into_iter().find(|own| *own >= stages) {
            Some(stage) => Err(format!(
                "--offload names stage {stage}, but there are {stages}, numbered from 0"
            )),
            None => Ok(()),
        }
    }

    /// What is asked for and does nothing on these devices, in words.
    pub(super) fn idle(&self) -> Option<String> {
        let idle = self.tf32 && !self.devices.iter().any(|device| device.is_cuda());
        idle.then(|| {
            "pipeline.tf32 = true does nothing here: it is for CUDA devices, and there is none"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::form::{Form as _, List};

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
        let check = |memory: &str, devices: &[Device]| {
            check_memory(&List(CAP).parse(memory).unwrap(), devices)
        };
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
