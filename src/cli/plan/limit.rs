//! What limits the plan, in one sentence, and what to change.

use gpipe_partitioner::{Machine, Micros, Plan, PlanOptions, Problem, Profile, StageId, simulate};

#[cfg(feature = "torch")]
use crate::metrics::is_host_bound;

/// A step that is shorter by this share without transfers is bound by them.
const TRANSFERS: f64 = 0.1;
/// The busiest device over the mean.
const UNEVEN: f64 = 1.1;
/// Cores that compute this share of the step are what it waits for.
const BUSY: f64 = 0.9;
/// A larger idle share, where devices are even, is the schedule's own.
const IDLE: f64 = 0.2;

/// The sentence; `load` is what a batch takes to load, where that was measured.
pub(in crate::cli) fn sentence(
    profile: &Profile,
    plan: &Plan,
    options: &PlanOptions,
    load: Option<Micros>,
) -> String {
    if let Some(sentence) = load.and_then(|load| input_bound(load, plan.step)) {
        return sentence;
    }
    if plan.recompute.contains(&true) {
        let count = plan.recompute.iter().filter(|&&redo| redo).count();
        return format!(
            "memory-bound: {count} of {} stages recompute to fit; more --memory, more devices or a \
             smaller --batch would save that time",
            plan.recompute.len()
        );
    }
    if let Some(sentence) = core_bound(profile, plan, options) {
        return sentence;
    }
    if let Some(share) = transfers(profile, plan, options).filter(|share| *share > TRANSFERS) {
        return format!(
            "transfer-bound: {:.0} % of the step is waiting for transfers; use a faster link or \
             fewer devices, or cut where layers hand over less",
            100.0 * share
        );
    }
    if plan.devices() > 1
        && let Some(sentence) = uneven(profile, plan)
    {
        return sentence;
    }
    if plan.bubble_fraction > IDLE {
        // Where their number was chosen, more of them of the same batch were slower.
        let more = match options.micro_batches {
            Some(_) => "more micro-batches (--micro, or a larger --batch) fill it better",
            None => "micro-batches of a larger --batch fill it better",
        };
        return format!(
            "bubble-bound: devices idle {:.0} % of the step while the pipeline fills and drains; {more}",
            100.0 * plan.bubble_fraction
        );
    }
    format!(
        "compute-bound: devices compute {:.0} % of the step; only faster or more devices make it \
         shorter",
        100.0 * (1.0 - plan.bubble_fraction)
    )
}

/// The verdict where devices that work by themselves wait for the host threads that tell
/// them what to do, which were busy for this share of their time.
#[cfg(feature = "torch")]
pub(in crate::cli) fn host_bound(host_share: Option<f64>) -> Option<String> {
    let share = host_share.filter(|share| is_host_bound(*share))?;
    Some(format!(
        "host-bound: telling the devices what to do takes {:.0} % of the time that they take to do \
         it; give them more at once: larger micro-batches, or fewer of them",
        100.0 * share
    ))
}

/// The verdict where a batch takes longer to load than to train on, which goes on
/// meanwhile: devices then wait for the loader, whatever the plan.
fn input_bound(load: Micros, step: Micros) -> Option<String> {
    let waits = 1.0 - step.get() / load.get();
    (load > step).then(|| {
        format!(
            "input-bound: a batch takes {load} to load and {step} to train on, so devices wait {:.0} \
             % of the time; store the data better, read it in parallel, or prefetch more",
            100.0 * waits
        )
    })
}

/// The verdict where devices share too few cores, and keep them busy.
fn core_bound(profile: &Profile, plan: &Plan, options: &PlanOptions) -> Option<String> {
    let cores = options.machine.cores()?;
    let devices = plan.devices();
    if cores.suffice(devices) {
        return None;
    }
    let costs = profile.costs(plan.micro_batch_size);
    let of_micro: f64 = (costs.iter())
        .map(|cost| cost.forward.get() + cost.backward.get())
        .sum();
    let at_once = cores.at_once() as f64;
    let busy = of_micro * plan.micro_batches as f64 / (at_once * plan.step.get());
    (busy > BUSY).then(|| {
        format!(
            "core-bound: {devices} devices share {} cores, which compute {:.0} % of the step; only \
             more cores make it shorter, and as many devices as cores would be as fast",
            cores.cores(),
            100.0 * busy.min(1.0)
        )
    })
}

/// The share of the step that free transfers would save.
fn transfers(profile: &Profile, plan: &Plan, options: &PlanOptions) -> Option<f64> {
    let schedule = plan.generate().ok()?;
    let mut free = Machine::new(options.machine.devices().len()).ok()?;
    if let Some(cores) = options.machine.cores() {
        free = free.with_cores(cores);
    }
    let problem = Problem::new(profile, plan.micro_batch_size, &free, &schedule);
    let costs = problem.stage_costs(&plan.partition, &plan.recompute);
    let without = simulate(&schedule, &costs).makespan();
    Some(1.0 - without.get() / plan.step.get())
}

fn uneven(profile: &Profile, plan: &Plan) -> Option<String> {
    let costs = profile.costs(plan.micro_batch_size);
    let of = |layer: usize| costs[layer].forward.get() + costs[layer].backward.get();
    let mut loads = vec![0.0; plan.devices()];
    for (stage, device) in plan.placement.iter().enumerate() {
        loads[device.index()] += plan.partition.range(StageId(stage)).map(of).sum::<f64>();
    }
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let busiest = loads.iter().copied().fold(0.0, f64::max);
    if busiest <= UNEVEN * mean {
        return None;
    }
    let slowest = (0..costs.len()).max_by(|a, b| of(*a).total_cmp(&of(*b)))?;
    let name = &profile.layers()[slowest].name;
    let time = Micros::new(of(slowest)).unwrap_or(Micros::ZERO);
    Some(format!(
        "unbalanced: the busiest device has {:.0} % more work than the mean, and layer `{name}` \
         alone takes {time} of a micro-batch's {}; split it into smaller layers",
        100.0 * (busiest / mean - 1.0),
        Micros::new(loads.iter().sum()).unwrap_or(Micros::ZERO)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_that_cannot_keep_up_is_the_limit() {
        let micros = |number| Micros::new(number).unwrap();
        assert_eq!(input_bound(micros(900.0), micros(1000.0)), None);
        assert_eq!(input_bound(micros(1000.0), micros(1000.0)), None);
        assert_eq!(input_bound(Micros::ZERO, Micros::ZERO), None);
        assert_eq!(
            input_bound(micros(4000.0), micros(1000.0)).unwrap(),
            "input-bound: a batch takes 4.00 ms to load and 1.00 ms to train on, so devices wait 75 \
             % of the time; store the data better, read it in parallel, or prefetch more"
        );
    }
}
