//! Whether a schedule fits the devices' limits of memory.

use gpipe_partitioner::{Bytes, DeviceId, Machine, Simulation};
use serde_json::{Value, json};

/// Limits of the devices of a replica; none where not asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits(Vec<Option<Bytes>>);

/// Excess of a device over its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excess {
    device: DeviceId,
    by: Bytes,
    limit: Bytes,
    others: Others,
}

/// Excess of the other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// All exceed their limits by as much.
    Alike,
    /// That many others exceed theirs, too.
    Over(usize),
}

impl Limits {
    pub(super) fn of(machine: &Machine) -> Self {
        let limits = || machine.devices().iter().map(|device| device.memory);
        Self(if limits().any(|limit| limit.is_some()) {
            limits().collect()
        } else {
            Vec::new()
        })
    }

    pub(super) fn are_given(&self) -> bool {
        !self.0.is_empty()
    }

    /// The limits, in the form that `auto` takes.
    pub(super) fn caps(&self) -> &[Option<Bytes>] {
        &self.0
    }

    /// Returns the device with the largest excess; none if all fit.
    pub(super) fn excess(&self, simulation: &Simulation) -> Option<Excess> {
        let peaks = simulation.peak_bytes().into_iter().zip(&self.0);
        let over = |(device, (peak, limit)): (usize, (Bytes, &Option<Bytes>))| {
            let limit = (*limit)?;
            let by = peak - limit;
            let device = DeviceId(device);
            let others = Others::Over(0);
            (by > Bytes::ZERO).then_some(Excess {
                device,
                by,
                limit,
                others,
            })
        };
        let all: Vec<Excess> = peaks.enumerate().filter_map(over).collect();
        let most = all.iter().copied();
        // The first among equals.
        let most = most.reduce(|a, b| if b.by > a.by { b } else { a })?;
        let as_far = |own: &Excess| (own.by, own.limit) == (most.by, most.limit);
        let alike = all.len() == self.0.len() && all.len() > 1 && all.iter().all(as_far);
        let others = if alike {
            Others::Alike
        } else {
            Others::Over(all.len() - 1)
        };
        Some(Excess { others, ..most })
    }

    /// Returns the simulation with the least excess, and the excess; none if one fits.
    pub(super) fn nearest<'a>(
        &self,
        all: impl Iterator<Item = (String, &'a Simulation)>,
    ) -> Option<(String, Excess)> {
        let excesses: Option<Vec<_>> = all
            .map(|(name, simulation)| Some((name, self.excess(simulation)?)))
            .collect();
        // The first among equals.
        excesses?.into_iter().min_by_key(|(_, excess)| excess.by)
    }

    /// Says in a sentence whether the schedule fits; none if not asked for.
    pub(super) fn sentence(&self, simulation: &Simulation) -> Option<String> {
        self.are_given().then(|| match self.excess(simulation) {
            Some(excess) => format!("does not fit: {}", excess.words()),
            None => "fits the memory of each device".to_owned(),
        })
    }

    /// Returns the limit of every device, if they have the same.
    pub(super) fn of_each(&self) -> Option<Bytes> {
        let first = *self.0.first()?;
        first.filter(|_| self.0.iter().all(|limit| *limit == first))
    }

    /// Returns the text after the devices, such as ` of 3.0 GiB`; empty without limits.
    pub(super) fn each(&self) -> String {
        let known = || self.0.iter().flatten();
        match (known().min(), known().max()) {
            (Some(least), Some(most)) if least == most => format!(" of {most}"),
            (Some(least), Some(most)) => format!(" of {least} to {most}"),
            _ => String::new(),
        }
    }

    /// Adds the limits, and whether the schedule fits, to the numbers.
    pub(super) fn add_to(&self, numbers: &mut Value, simulation: &Simulation) {
        if self.are_given() {
            numbers["memory"] = json!(self.0);
            numbers["fits"] = json!(self.excess(simulation).is_none());
        }
    }
}

impl Excess {
    /// Formats the excess for a cell.
    pub(super) fn short(&self) -> String {
        format!("{} more", self.by)
    }

    pub(super) fn words(&self) -> String {
        let Self {
            device,
            by,
            limit,
            others,
        } = self;
        let more = format!("takes {by} more than its {limit}");
        match others {
            Others::Alike => format!("each device {more}"),
            Others::Over(0) => format!("device {device} {more}"),
            Others::Over(1) => format!("device {device} {more}, and one other does not fit either"),
            Others::Over(others) => {
                format!("device {device} {more}, and {others} others do not fit either")
            }
        }
    }
}
