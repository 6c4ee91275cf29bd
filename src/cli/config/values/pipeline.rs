//! Settings of a pipeline and its optimizer.

use clap::{Arg, ArgAction, ArgMatches};
use gpipe_partitioner::words::{instead, meant, whole_number};
use gpipe_partitioner::{ScheduleError, ScheduleKind};
use tch::Device;

use super::super::form::{Form, One};
use super::super::{Kind, Value};
use super::{BY_A_PLAN, whole};
use crate::input;
use gpipe_models::LossKind;
use gpipe_torch::{Kernels, LrKind, OptimizerKind, Precision, Recompute, device_name};

/// A list of devices, in which an entry may stand for several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices;

impl Form for Devices {
    type Value = Vec<Device>;

    fn kind(&self) -> Kind {
        Kind::List
    }

    fn parse(&self, text: &str) -> Result<Vec<Device>, String> {
        input::devices(text)
    }

    fn write(&self, devices: &Vec<Device>) -> Option<Value> {
        let names = devices.iter().map(|own| Value::Text(device_name(*own)));
        Some(Value::List(names.collect()))
    }

    fn arg(&self, arg: Arg) -> Arg {
        // `-1` reaches the parser, which rejects it with a reason.
        let arg = arg
            .allow_negative_numbers(true)
            .value_parser(input::devices);
        arg.value_delimiter(',').action(ArgAction::Append)
    }

    fn taken(&self, matches: &ArgMatches, id: &str) -> Option<Vec<Device>> {
        let entries = matches.get_many::<Vec<Device>>(id)?;
        Some(entries.flatten().copied().collect())
    }
}

pub(crate) const CHUNKS: One<usize> = whole(|text| whole_number(text, 1 << 12));

pub(crate) const THREADS: One<usize> = whole(|text| whole_number(text, 1 << 10));

/// Number of leaves of a tree.
pub(crate) const LEAVES: One<usize> = whole(input::leaves);

/// A schedule for training.
pub(crate) const SCHEDULE: One<ScheduleKind> = One {
    kind: Kind::Text,
    parse: |text| match text.trim().parse() {
        Ok(kind) if !ScheduleKind::trains(kind) => Err(
            "it has no backward, so nothing can be trained with it; choose another, such as 1f1b"
                .to_owned(),
        ),
        Ok(kind) => Ok(kind),
        Err(ScheduleError::UnknownName { name, suggestion }) => {
            let near = suggestion.filter(|kind| kind.trains());
            let choices = format!("there are {}", schedules());
            let more = instead(near.map(ScheduleKind::name), &choices);
            Err(format!("there is no schedule `{name}`{more}"))
        }
        Err(other) => Err(other.to_string()),
    },
    write: |schedule| Value::Text(schedule.to_string()),
};

/// Names of the training schedules, for help.
pub(crate) fn schedules() -> String {
    let train = |kind: &ScheduleKind| *kind != ScheduleKind::ForwardOnly;
    let names = ScheduleKind::ALL.into_iter().filter(train);
    let names: Vec<&str> = names.map(ScheduleKind::name).collect();
    match names.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A word, or a boolean per stage as in a plan.
pub(crate) const RECOMPUTE: One<Recompute> = One {
    kind: Kind::List,
    parse: |text| {
        let stages = text.split(',').map(|stage| stage.trim().parse());
        match stages.collect::<Result<Vec<bool>, _>>() {
            Ok(stages) => Ok(Recompute::Stages(stages)),
            Err(_) if text.trim() == "auto" => Err(BY_A_PLAN.to_owned()),
            Err(_) => text.trim().parse(),
        }
    },
    write: |recompute| match stages_of(recompute) {
        Some(stages) => Value::List(stages.iter().copied().map(Value::Truth).collect()),
        None => Value::Text(recompute.to_string()),
    },
};

/// Returns the flags per stage, if set individually.
pub(crate) fn stages_of(recompute: &Recompute) -> Option<&[bool]> {
    match recompute {
        Recompute::Stages(stages) => Some(stages),
        _ => None,
    }
}

pub(crate) const PRECISION: One<Precision> = One {
    kind: Kind::Text,
    parse: |text| {
        text.trim().parse().map_err(|rule| {
            format!(
                "`{text}` is no precision{}",
                instead(near_precision(text), &format!("it {rule}"))
            )
        })
    },
    write: |precision| Value::Text(precision.to_string()),
};

/// Suggests a precision; Lightning's `bf16-mixed` and `32-true` contain the names used here.
fn near_precision(text: &str) -> Option<&'static str> {
    let text = text.trim().to_lowercase();
    let short = text.trim_end_matches("-mixed").trim_end_matches("-true");
    match short {
        "32" | "float" | "full" | "single" => Some("f32"),
        "16" | "half" => Some("fp16"),
        "mixed" | "amp" => Some("bf16"),
        other => meant(other, Precision::ALL.map(Precision::name)),
    }
}

pub(crate) const KERNELS: One<Kernels> = One {
    kind: Kind::Text,
    parse: |text| {
        text.trim().parse().map_err(|rule| {
            let near = meant(text, Kernels::NAMES);
            format!(
                "`{text}` names no kernels{}",
                instead(near, &format!("it {rule}"))
            )
        })
    },
    write: |kernels| Value::Text(kernels.to_string()),
};

/// Like the kernels above; `auto` selects the faster ones for the processor at hand.
pub(crate) const KERNELS_OR_AUTO: One<Option<Kernels>> = One {
    kind: Kind::Text,
    parse: |text| match text.trim() {
        "auto" => Ok(None),
        other => (KERNELS.parse)(other)
            .map(Some)
            .map_err(|why| why.replace("must be libtorch", "must be auto, libtorch")),
    },
    write: |kernels| {
        let name = kernels.map(|own| own.to_string());
        Value::Text(name.unwrap_or_else(|| "auto".to_owned()))
    },
};

/// An optimizer with its usual numbers.
pub(crate) const OPTIMIZER: One<OptimizerKind> = One {
    kind: Kind::Text,
    parse: |text| {
        text.trim().parse().map_err(|_| {
            let names = OptimizerKind::NAMES;
            let choices = format!("there are {}", names.join(", "));
            format!(
                "`{text}` is no optimizer{}",
                instead(meant(text, names), &choices)
            )
        })
    },
    write: |optimizer| Value::Text(optimizer.name().to_owned()),
};

/// A loss by name.
pub(crate) const LOSS: One<LossKind> = One {
    kind: Kind::Text,
    parse: |text| text.trim().parse(),
    write: |loss| Value::Text(loss.to_string()),
};

pub(crate) const LR_SCHEDULE: One<LrKind> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |kind| Value::Text(kind.to_string()),
};
