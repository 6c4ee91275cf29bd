//! Caveats of a plan.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Cluster, Plan, PlanOptions, Profile};

use super::{Args, shape::ShapeFlags, simpler_plan, single_stage};

/// Returns the caveats of a plan.
pub fn notes(
    profile: &Profile,
    plan: &Plan,
    options: &PlanOptions,
) -> impl Iterator<Item = String> {
    let notes = [
        fewest(profile),
        beyond(profile, plan),
        shared(profile, options),
        single_stage::note(profile, plan, options),
        simpler_plan::note(profile, plan),
    ];
    notes.into_iter().flatten()
}

/// Notes that the number of samples of micro-batches was restricted.
fn fewest(profile: &Profile) -> Option<String> {
    let fewest = profile.fewest_samples();
    (fewest > 1).then(|| {
        format!(
            "note: no micro-batches of less than {fewest} are planned with: a batch norm of \
             the model has one value of each channel",
            fewest = count(fewest, "sample")
        )
    })
}

/// Notes that the plan uses sizes that were not measured.
fn beyond(profile: &Profile, plan: &Plan) -> Option<String> {
    let (size, largest) = (plan.micro_batch_size, profile.batch());
    (size > largest).then(|| {
        format!(
            "note: micro-batches of {size} are larger than any that was measured \
             ({largest}): times and bytes are carried on from there; profile with a larger --batch \
             to know",
            size = count(size, "sample")
        )
    })
}

/// Notes that devices are assumed to have their own cores, though they shared cores when measured.
fn shared(profile: &Profile, options: &PlanOptions) -> Option<String> {
    let (cores, devices) = (profile.all_cores()?, options.machine.devices().len());
    (options.machine.cores().is_none() && devices > cores).then(|| {
        format!(
            "note: each of the {devices} devices is taken to have cores of its own; those of the \
             profile were CPU devices that shared {cores} cores (--cores {cores} plans for such)"
        )
    })
}

/// Notes that GPUs of a cluster are assumed to be as fast as the measured CPU.
pub(super) fn as_fast_as_measured(
    args: &Args,
    cluster: &Cluster,
    profile: &Profile,
) -> Option<&'static str> {
    let scaled = args.speed.is_some() || args.scale_to.is_some();
    let mut cards = cluster.kinds().iter().map(|kind| kind.card);
    let told = cards.any(|card| card.speed.total_cmp(&1.0).is_ne());
    let applies = args.cluster.cluster.is_some() && profile.device() == "cpu" && !scaled && !told;
    applies.then_some(
        "the profile was measured on a CPU, and each card is taken to be as fast as that was: \
         --speed X says how many times as fast cards are, --scale-to FILE takes it from a few \
         layers that were measured on one, and --model-shape computes times of known cards",
    )
}

/// Notes the number of samples of a plan without a --batch.
pub(super) fn without_batch(samples: usize, shape: &ShapeFlags, profile: &Profile) -> String {
    let why = if shape.is_given() {
        "four for each card".to_owned()
    } else {
        let each = profile.batch();
        format!("{} times the profile's {each}", samples / each)
    };
    format!(
        "note: without --batch this is for mini-batches of {}: {why}",
        count(samples, "sample")
    )
}
