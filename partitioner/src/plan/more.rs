//! Gain from one more device, or one more GiB on each.

use super::{Plan, PlanOptions, plan};
use crate::profile::Profile;
use crate::units::{Bytes, Micros};

/// A GiB.
pub(super) const GIB: Bytes = Bytes(1 << 30);

/// A machine or cluster with a little more of something.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct More {
    /// The addition, such as `one more device`.
    pub what: String,
    /// The step of the plan with it; that of this plan if nothing better is found.
    pub step: Micros,
}

/// Returns the steps of plans for the same mini-batch with one more device in each replica, as fast as the
/// fastest and with as much memory, and with one more GiB on each device if memory has a limit. No device is
/// added if devices are divided among nodes or processes: those grow by nodes.
///
/// # Complexity
/// A plan for each.
///
/// # Examples
/// ```
/// use gpipe_partitioner::{LayerProfile, LayerTimes, Machine, Micros, PlanOptions, Profile};
/// use gpipe_partitioner::{plan, what_more_devices};
///
/// let time = Micros::new(1000.0)?;
/// let layers = (0..12).map(|n| LayerProfile::new(format!("block.{n}"), LayerTimes::new(time, time, time)));
/// let profile = Profile::new("cpu", 8, layers.collect())?;
/// let options = PlanOptions::new(Machine::new(3)?);
/// let own = plan(&profile, &options)?;
/// let more = what_more_devices(&profile, &options, &own);
/// assert_eq!(more[0].what, "one more device");
/// assert!(more[0].step < own.step);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn what_more_devices(profile: &Profile, options: &PlanOptions, own: &Plan) -> Vec<More> {
    let machine = &options.machine;
    let device = match machine.replicas() {
        1 => "one more device".to_owned(),
        _ => "one more device in each replica".to_owned(),
    };
    let limited = machine.devices().iter().any(|own| own.memory.is_some());
    let memory = limited.then(|| {
        (
            format!("{GIB} more on each device"),
            machine.clone().with_more_memory(GIB),
        )
    });
    let device = machine
        .clone()
        .with_one_more()
        .ok()
        .map(|more| (device, more));
    let planned = device
        .into_iter()
        .chain(memory)
        .filter_map(|(what, machine)| {
            let options = PlanOptions {
                machine,
                batch: options.samples(profile.batch()).ok(),
                ..options.clone()
            };
            let step = plan(profile, &options).ok()?.step.min(own.step);
            Some(More { what, step })
        });
    planned.collect()
}
