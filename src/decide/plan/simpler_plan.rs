//! Whether a simpler plan is as fast, within the accuracy of the measurements.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Alternative, Plan, Profile, ScheduleKind};

/// Notes that a runner-up with fewer stages per device, or with a built-in schedule instead of a
/// computed one, is slower by less than the spread of the layers' times.
pub(super) fn note(profile: &Profile, plan: &Plan) -> Option<String> {
    let apart = apart(profile)?;
    let slower = |own: &Alternative| Some(own.step?.get() / plan.step.get() - 1.0);
    let simplicity = |own: &Alternative| (own.chunks, own.schedule == ScheduleKind::Auto);
    let chosen = (plan.chunks, plan.schedule == ScheduleKind::Auto);
    let same_devices =
        |own: &&Alternative| (own.replicas, own.devices) == (plan.replicas, plan.devices());
    let others = plan.alternatives.iter().filter(same_devices);
    let simpler = others
        .filter(|own| simplicity(own) < chosen && slower(own).is_some_and(|share| share < apart));
    // Among equally simple ones the first, which is the fastest.
    let own = simpler.min_by_key(|own| simplicity(own))?;
    Some(format!(
        "note: {name} with {chunks} a device is simpler, and {share:.1} % slower in prediction: less than \
         the times of the layers are apart ({apart:.1} % of a step), so it may be as fast (--schedule \
         {name} --chunks {own_chunks})",
        name = own.schedule,
        chunks = count(own.chunks, "stage"),
        share = 100.0 * slower(own)?,
        apart = 100.0 * apart,
        own_chunks = own.chunks,
    ))
}

/// Returns the spread of the step, as a share of it, if layers vary independently: the interquartile
/// ranges of the layers, added like variances. None if a layer has no spread.
fn apart(profile: &Profile) -> Option<f64> {
    let (mut whole, mut squares) = (0.0, 0.0);
    for layer in profile.layers() {
        let spread = layer.spread?;
        let (forward, backward) = (layer.times.forward.get(), layer.times.joint().get());
        whole += forward + backward;
        let of_both = forward * spread.forward() + backward * spread.backward();
        squares += of_both * of_both;
    }
    (whole > 0.0).then(|| squares.sqrt() / whole)
}
