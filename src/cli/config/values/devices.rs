//! Settings of devices: memory limits, and offloading to host memory.

use std::fmt;
use std::str::FromStr;

use gpipe_partitioner::Bytes;
use tch::Device;

use super::super::form::One;
use super::super::{Kind, Value};
use super::BY_A_PLAN;
use crate::input;
use gpipe_torch::error::settings::in_whole_units;
use gpipe_torch::{Pipeline, PipelineBuilder, Sequential};

/// Memory limit of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cap(Option<Bytes>);

pub(crate) const CAP: One<Cap> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |cap| Value::Text(cap.to_string()),
};

impl FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self(None)),
            other => match input::memory(other)? {
                Bytes(0) => Err("must be more than nothing; `none` is without a limit".to_owned()),
                bytes => Ok(Self(Some(bytes))),
            },
        }
    }
}

/// Formats the limit so that it parses back to the same value.
impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(bytes) => f.write_str(&in_whole_units(bytes)),
        }
    }
}

/// The stages whose activations are offloaded to host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offload {
    #[default]
    None,
    All,
    /// Stage indices, sorted and without duplicates.
    Stages(Vec<usize>),
}

pub(crate) const OFFLOAD: One<Offload> = One {
    kind: Kind::List,
    parse: |text| text.parse(),
    write: |offload| match offload {
        Offload::None => Value::Text("never".to_owned()),
        Offload::All => Value::Text("always".to_owned()),
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
                     `always` or `never`"
                )
            })
        };
        match text.trim() {
            // The second words are from earlier versions.
            "never" | "none" => Ok(Self::None),
            "always" | "all" => Ok(Self::All),
            "auto" => Err(BY_A_PLAN.to_owned()),
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
    /// Converts a flag per stage, to a single word where one applies.
    pub(crate) fn of_stages(stages: &[bool]) -> Self {
        let own = (0..stages.len()).filter(|&stage| stages[stage]);
        match (stages.contains(&true), stages.contains(&false)) {
            (false, _) => Self::None,
            (_, false) => Self::All,
            _ => Self::Stages(own.collect()),
        }
    }

    /// Returns the indices of the offloaded stages, for a given number of stages.
    pub(crate) fn of(&self, stages: usize) -> Vec<usize> {
        match self {
            Self::None => Vec::new(),
            Self::All => (0..stages).collect(),
            Self::Stages(own) => own.clone(),
        }
    }

    /// Whether all indices are valid for a given number of stages.
    pub(crate) fn fits(&self, stages: usize) -> bool {
        self.of(stages).iter().all(|stage| *stage < stages)
    }
}

impl Cap {
    /// Sets the memory limits of devices; a single limit applies to all devices that can have one.
    pub(crate) fn limit(builder: PipelineBuilder, caps: &[Self]) -> PipelineBuilder {
        match caps {
            [] | [Self(None)] => builder,
            [Self(Some(limit))] => builder.memory_limit(*limit),
            caps => builder.memory_limits(&caps.iter().map(|cap| cap.0).collect::<Vec<_>>()),
        }
    }

    /// Whether these limits are valid for these devices.
    pub(crate) fn fit(caps: &[Self], devices: &[Device]) -> bool {
        let builder = Pipeline::builder(Sequential::new()).devices(devices);
        Self::limit(builder, caps).memory_of_devices().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::form::{Form as _, List};

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
        // It was parsed as ten bytes, a limit that no plan and no step respected.
        let few = "10".parse::<Cap>().unwrap_err();
        assert!(few.contains("write 10GiB"), "{few}");
        assert!("10B".parse::<Cap>().is_ok());
    }

    #[test]
    fn caps_fit_the_devices_that_they_are_for() {
        let (gpu, cpu) = (Device::Cuda(0), Device::Cpu);
        let fit =
            |memory: &str, devices: &[Device]| Cap::fit(&List(CAP).parse(memory).unwrap(), devices);
        assert!(fit("24GiB", &[gpu, cpu]));
        assert!(fit("24GiB,none", &[gpu, cpu]));
        assert!(fit("24GiB,16GiB", &[gpu, gpu]));
        assert!(!fit("24GiB", &[cpu, cpu]));
        assert!(!fit("1GiB,2GiB", &[gpu]));
        assert!(!fit("1GiB,2GiB", &[gpu, cpu]));
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

    #[test]
    fn the_words_of_plans_and_those_of_earlier_versions_are_read() {
        for (words, own) in [
            (["never", "none"], Offload::None),
            (["always", "all"], Offload::All),
        ] {
            for word in words {
                assert_eq!(word.parse(), Ok(own.clone()), "{word}");
            }
            assert_eq!((OFFLOAD.write)(&own), Value::Text(words[0].to_owned()));
        }
    }
}
