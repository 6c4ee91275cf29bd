//! What settings of a run may be, besides texts and numbers.

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use crate::cli::config::form::One;
use crate::cli::config::values::whole;
use crate::cli::config::{Kind, Value};
use crate::cli::input;
use crate::models::zoo::nearest;
use crate::torch::device_name;
use crate::{Precision, Recompute};

pub(super) const DEVICE: One<Device> = One {
    kind: Kind::Text,
    parse: |text| crate::parse_device(text).map_err(|error| error.to_string()),
    write: |device| Value::Text(device_name(*device)),
};

pub(super) const CHUNKS: One<usize> = whole(|text| input::count(text, 1 << 12));

pub(super) const THREADS: One<usize> = whole(|text| input::count(text, 1 << 10));

/// A schedule that trains.
pub(super) const SCHEDULE: One<ScheduleKind> = One {
    kind: Kind::Text,
    parse: |text| match input::schedule(text)? {
        ScheduleKind::ForwardOnly => Err(
            "it has no backward, so nothing can be trained with it; choose another, such as 1f1b"
                .to_owned(),
        ),
        kind => Ok(kind),
    },
    write: |schedule| Value::Text(schedule.to_string()),
};

/// Their names, for help.
pub(super) fn schedules() -> String {
    let train = |kind: &ScheduleKind| *kind != ScheduleKind::ForwardOnly;
    let names = ScheduleKind::ALL.into_iter().filter(train);
    let names: Vec<&str> = names.map(ScheduleKind::name).collect();
    match names.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A word, or true or false for each stage, as a plan decides it.
pub(super) const RECOMPUTE: One<Recompute> = One {
    kind: Kind::List,
    parse: |text| {
        let stages = text.split(',').map(|stage| stage.trim().parse());
        match stages.collect::<Result<Vec<bool>, _>>() {
            Ok(stages) => Ok(Recompute::Stages(stages)),
            Err(_) => text.trim().parse(),
        }
    },
    write: |recompute| match stages_of(recompute) {
        Some(stages) => Value::List(stages.iter().copied().map(Value::Truth).collect()),
        None => Value::Text(recompute.to_string()),
    },
};

/// What is decided for each stage by itself.
pub(super) fn stages_of(recompute: &Recompute) -> Option<&[bool]> {
    match recompute {
        Recompute::Stages(stages) => Some(stages),
        _ => None,
    }
}

pub(super) const PRECISION: One<Precision> = One {
    kind: Kind::Text,
    parse: |text| {
        let names = Precision::ALL.map(|precision| precision.name().to_owned());
        text.trim().parse().map_err(|rule| {
            format!(
                "`{text}` is no precision: did you mean `{}`? It {rule}",
                nearest(text, &names)
            )
        })
    },
    write: |precision| Value::Text(precision.to_string()),
};
