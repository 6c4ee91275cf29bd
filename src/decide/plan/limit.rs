//! The limit of a plan, in one sentence, with a remedy.

use gpipe_partitioner::{CheckedSchedule, Costs, Micros, Plan, PlanOptions, Profile, simulate};

use super::super::micro_batch_counts;
use super::work::Work;

/// A step is transfer-bound if it would be shorter by this share without transfers.
const TRANSFERS: f64 = 0.1;
/// Training is input-bound if it waits, or is slower, for its input for this share of the time.
const INPUT: f64 = 0.07;
/// Same as `TRANSFERS`, for the host.
pub(super) const HOST: f64 = 0.05;
/// Share of the step that matters: idle time of devices with their own cores, or busy time of
/// shared cores above 1 minus it.
const IDLE: f64 = 0.1;
/// Layers whose times differ by less than this share count as alike.
const ALIKE: f64 = 0.1;

/// Beginning of the sentence if loading is the limit.
pub const INPUT_BOUND: &str = "input-bound:";

/// Measurement of a data loader beside the planned step.
#[derive(Debug, Clone)]
pub struct Input {
    /// Time from one batch to the next, with the training.
    pub period: Micros,
    /// Whether loading limits, or the cores that it takes.
    pub limits: bool,
    /// Limit and remedy, in words.
    pub verdict: String,
}

/// Returns the sentence; `input` is the measured loader of the training data, if there is one.
pub fn sentence(
    profile: &Profile,
    plan: &Plan,
    options: &PlanOptions,
    input: Option<&Input>,
) -> String {
    if let Some(sentence) = input.and_then(|input| input_bound(input, plan.step)) {
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
    if let Some(sentence) = plan
        .computed
        .as_ref()
        .and_then(micro_batch_counts::sentence)
    {
        return format!(
            "memory-bound: {sentence}; more --memory, more devices or a smaller --batch would save \
             that time"
        );
    }
    // The schedule exists, as the plan was made for it.
    let priced = Priced::of(profile, plan, options);
    let saved = |change: fn(Costs) -> Costs| priced.as_ref().map(|own| own.saved(change));
    let work =
        (priced.as_ref()).map(|own| Work::of(profile, plan, &options.machine, &own.schedule));
    if let Some(sentence) = (work.as_ref()).and_then(|work| core_bound(work, plan, options)) {
        return sentence;
    }
    if let Some(share) = saved(Costs::without_host).filter(|share| *share > HOST) {
        return format!(
            "host-bound: {:.0} % of the step is waiting for the host, which submits work more slowly \
             than the devices do it; give them more at once: larger micro-batches, or fewer of them",
            100.0 * share
        );
    }
    let moving = saved(Costs::without_offload);
    if let Some(share) = moving.filter(|share| *share > TRANSFERS) {
        return format!(
            "memory-bound: {:.0} % of the step is waiting for activations on their way to the \
             host's memory and back; more --memory, more devices or a faster link to the host would \
             save that time",
            100.0 * share
        );
    }
    let transfers = saved(|costs| costs.with_transfer(Micros::ZERO, Micros::ZERO));
    if let Some(share) = transfers.filter(|share| *share > TRANSFERS) {
        return format!(
            "transfer-bound: {:.0} % of the step is waiting for transfers; use a faster link or \
             fewer devices, or cut where layers hand over less",
            100.0 * share
        );
    }
    let exchange = saved(Costs::without_exchange);
    if let Some(share) = exchange.filter(|share| *share > TRANSFERS) {
        return format!(
            "all-reduce-bound: {:.0} % of the step is waiting for gradients that replicas exchange; \
             a larger --batch, fewer --replicas or a faster link between them would save that time",
            100.0 * share
        );
    }
    // Time that devices idle because of unequal work.
    let uneven = work.as_ref().map_or(0.0, Work::idle);
    if let Some(work) = work.filter(|_| uneven > IDLE && 2.0 * uneven >= plan.bubble_fraction) {
        return unbalanced(profile, &work, is_tight(plan, options));
    }
    if plan.bubble_fraction > IDLE {
        // If the planner chose their number, more micro-batches of the same batch were slower.
        let more = match options.micro_batches {
            Some(_) => "more micro-batches (--micro, or a larger --batch) fill it better",
            None => "micro-batches of a larger --batch fill it better",
        };
        return format!(
            "bubble-bound: devices idle {:.1} % of the step while the pipeline fills and drains; {more}",
            100.0 * plan.bubble_fraction
        );
    }
    format!(
        "compute-bound: devices compute {:.0} % of the step; faster devices make it shorter, \
         more of them may",
        100.0 * (1.0 - plan.bubble_fraction)
    )
}

/// Returns the verdict if loading beside the training slows it down, whatever the plan.
fn input_bound(input: &Input, step: Micros) -> Option<String> {
    let Input {
        period, verdict, ..
    } = input;
    let longer = 1.0 - step.get() / period.get();
    (input.limits && longer >= INPUT).then(|| {
        format!(
            "{INPUT_BOUND} a step takes {step}, and {period} with its input, {:.0} % of it for that; \
             {verdict}",
            100.0 * longer
        )
    })
}

/// Returns the verdict if devices share too few cores, and keep them busy.
fn core_bound(work: &Work, plan: &Plan, options: &PlanOptions) -> Option<String> {
    let cores = options.machine.cores()?;
    let devices = plan.devices();
    if cores.suffice(devices) {
        return None;
    }
    let of_micro: f64 = work.devices.iter().sum();
    let at_once = cores.at_once() as f64;
    let busy = of_micro * plan.micro_batches as f64 / (at_once * plan.step.get());
    (busy > 1.0 - IDLE).then(|| {
        format!(
            "core-bound: {devices} devices share {} cores, which compute {:.0} % of the step; only \
             more cores make it shorter, and as many devices as cores would be as fast",
            cores.cores(),
            100.0 * busy
        )
    })
}

/// A plan with its schedule and the costs of its simulation.
pub(super) struct Priced<'a> {
    plan: &'a Plan,
    schedule: CheckedSchedule,
    costs: Costs,
}

impl<'a> Priced<'a> {
    fn of(profile: &Profile, plan: &'a Plan, options: &PlanOptions) -> Option<Self> {
        let schedule = plan.generate().ok()?;
        Some(Self::under(schedule, profile, plan, options))
    }

    pub(super) fn under(
        schedule: CheckedSchedule,
        profile: &Profile,
        plan: &'a Plan,
        options: &PlanOptions,
    ) -> Self {
        Self {
            costs: plan.costs(profile, options, &schedule),
            schedule,
            plan,
        }
    }

    /// Returns the share of the step saved if `change` is applied to the simulated costs.
    pub(super) fn saved(&self, change: impl Fn(Costs) -> Costs) -> f64 {
        let costs = change(self.costs.clone());
        if costs == self.costs {
            return 0.0;
        }
        let without = simulate(&self.schedule, &costs).makespan();
        1.0 - without.get() / self.plan.step.get()
    }
}

/// Returns the verdict if one device has more work than the others, with a remedy: a single layer
/// is to blame only if no device with it could be even with the others.
fn unbalanced(profile: &Profile, work: &Work, tight: bool) -> String {
    let time = |micros: f64| Micros::new(micros).unwrap_or(Micros::ZERO);
    let busiest = work.busiest();
    let slowest = work.layers.iter().copied().fold(0.0, f64::max);
    let alike = |layer: &&f64| **layer >= (1.0 - ALIKE) * slowest;
    let name = (profile.layers().iter().zip(&work.layers))
        .find_map(|(layer, own)| (*own >= slowest).then_some(layer.name.as_str()))
        .unwrap_or_default();
    let (takes, even) = (time(slowest), time(work.even));
    let why = if slowest <= work.even {
        let more = if tight { ", or more --memory" } else { "" };
        format!(
            "each layer is less than an even share ({even}), so another number of devices or of \
             layers may divide better{more}"
        )
    } else if work.layers.iter().filter(alike).count() > 1 {
        format!(
            "layers such as `{name}` take {takes} each, more than an even share ({even}): fewer \
             devices would be about as fast"
        )
    } else {
        format!(
            "layer `{name}` alone takes {takes}, more than an even share ({even}): fewer devices \
             would be about as fast, and a model of your own could have it in smaller layers"
        )
    };
    format!(
        "unbalanced: device {busiest} computes {} for a micro-batch and the mean is {}, which leaves \
         at least {:.1} % of the step idle; {why}",
        time(work.devices[busiest]),
        time(work.mean()),
        100.0 * work.idle(),
    )
}

/// Whether a device holds more than half of its limit, so that other cuts may not have fitted.
fn is_tight(plan: &Plan, options: &PlanOptions) -> bool {
    let devices = options.machine.devices().iter().zip(&plan.peak_bytes);
    devices
        .filter_map(|(device, peak)| Some((device.memory?, peak)))
        .any(|(memory, peak)| peak.get() > memory.get() / 2)
}

#[cfg(test)]
mod tests {
    use gpipe_partitioner::{LayerProfile, LayerTimes, Machine, ScheduleKind};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_loader_that_cannot_keep_up_is_the_limit() {
        let micros = |number| Micros::new(number).unwrap();
        let input = |limits| Input {
            period: micros(4000.0),
            limits,
            verdict: "CPU-bound in map: because".to_owned(),
        };
        assert_eq!(input_bound(&input(false), micros(1000.0)), None);
        // The loader's own verdict refers to its share of the measured step, not of this one.
        assert_eq!(input_bound(&input(true), micros(3840.0)), None);
        assert_eq!(
            input_bound(&input(true), micros(1000.0)).unwrap(),
            "input-bound: a step takes 1.00 ms, and 4.00 ms with its input, 75 % of it for that; \
             CPU-bound in map: because"
        );
    }

    /// Times of a layer: forward, both halves of the backward, and the whole backward.
    fn times() -> impl Strategy<Value = [f64; 4]> {
        prop::array::uniform4(1.0..1000.0)
    }

    fn profile(layers: &[[f64; 4]]) -> Profile {
        let micros = |number: f64| Micros::new(number).unwrap();
        let layer = |[forward, input, weight, joint]: &[f64; 4]| {
            let mut times = LayerTimes::new(micros(*forward), micros(*input), micros(*weight));
            times.backward = Some(micros(*joint));
            LayerProfile::new("layer", times)
        };
        Profile::new("cpu", 8, layers.iter().map(layer).collect()).unwrap()
    }

    proptest! {
        /// Regression: work was counted with other times than the plan's own, and a sentence gave
        /// the busiest device 20 % more than the mean, above a bubble of 5.7 %.
        #[test]
        fn the_work_is_the_plans_own(
            layers in prop::collection::vec(times(), 4..9),
            devices in 1_usize..5,
            micro in 1_usize..9,
            kind in 0..ScheduleKind::ALL.len(),
            speed in 0.25..4.0,
        ) {
            let mut speeds = vec![1.0; devices];
            speeds[0] = speed;
            let machine = Machine::new(devices).unwrap().with_speeds(&speeds).unwrap();
            let mut options = PlanOptions::new(machine);
            options.micro_batches = Some(micro);
            options.schedule = Some(ScheduleKind::ALL[kind]);
            let profile = profile(&layers);
            let Ok(plan) = gpipe_partitioner::plan(&profile, &options) else {
                return Ok(());
            };
            let schedule = plan.generate().unwrap();
            let work = Work::of(&profile, &plan, &options.machine, &schedule);
            prop_assert!(work.idle() <= plan.bubble_fraction + 1e-9);
            let busy = work.mean() * micro as f64 / plan.step.get();
            prop_assert!((1.0 - busy - plan.bubble_fraction).abs() < 1e-9);
            let said = sentence(&profile, &plan, &options, None);
            if let Some((head, _)) = said.split_once(" % of the step idle") {
                let idle: f64 = head.rsplit(' ').next().unwrap().parse().unwrap();
                prop_assert!(idle <= 100.0 * plan.bubble_fraction + 0.051, "{said}");
            }
        }
    }
}
