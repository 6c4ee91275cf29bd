mod files;

use proptest::prelude::*;

use super::*;
use crate::cost::HostLink;
use crate::machine::Machine;
use crate::profile::{Footprint, LayerProfile, LayerTimes, Profile};
use crate::simulate::simulate;
use crate::solve::{Problem, When};

fn profile(times: &[f64]) -> Profile {
    let layer =
        |(index, &us): (usize, &f64)| {
            let time = Micros::new(us).unwrap();
            LayerProfile::new(format!("layer.{index}"), LayerTimes::new(time, time, time))
                .with_bytes(Bytes(1 << 20), Bytes(4 << 20), Bytes(1 << 18))
        };
    Profile::new("cpu", 4, times.iter().enumerate().map(layer).collect()).unwrap()
}

fn options(devices: usize) -> PlanOptions {
    PlanOptions::new(Machine::new(devices).unwrap())
}

#[test]
fn a_plan_is_what_its_own_simulation_says() {
    let profile = profile(&[3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]);
    let mut options = options(3);
    options.machine = options.machine.with_link("1GB/s,2us".parse().unwrap());
    options.micro_batches = Some(6);
    let plan = plan(&profile, &options).unwrap();
    let schedule = plan.generate().unwrap();
    let problem = Problem::new(&profile, 4, &options.machine, &schedule);
    let costs = problem.stage_costs(&plan.partition, &plan.recompute, &plan.offload);
    let simulation = simulate(&schedule, &costs);
    assert_eq!(simulation.makespan(), plan.step);
    assert_eq!(simulation.peak_bytes(), plan.peak_bytes);
    assert!(!plan.recompute.contains(&true));
    let steps: Vec<Micros> = plan.alternatives.iter().filter_map(|a| a.step).collect();
    assert!(steps.iter().all(|&step| step >= plan.step), "{steps:?}");
    assert!(steps.is_sorted());
    assert!(
        plan.alternatives
            .iter()
            .any(|a| a.reason.contains("% slower: "))
    );
}

/// A computed schedule has other micro-batches in flight than the schedule it was computed from.
#[test]
fn a_plan_with_a_computed_schedule_is_what_its_own_simulation_says() {
    let times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
    let layers = profile(&times).layers().to_vec();
    // As in most layers, the input half of a backward holds more than the forward.
    let layers = layers.into_iter().map(|layer| LayerProfile {
        footprint: Footprint {
            after_input: Some(Bytes(6 << 20)),
            ..layer.footprint
        },
        ..layer
    });
    let profile = Profile::new("cpu", 4, layers.collect()).unwrap();
    let mut computed = 0;
    for (chunks, memory) in [
        (1, None),
        (1, Some("90MiB")),
        (2, None),
        (2, Some("100MiB")),
    ] {
        let mut options = options(3);
        options.schedule = Some(ScheduleKind::Auto);
        options.chunks = Some(chunks);
        options.micro_batches = Some(6);
        let link = "1GB/s,2us".parse().unwrap();
        options.machine = options.machine.with_link(link);
        let limit: Option<Bytes> = memory.map(|text| text.parse().unwrap());
        if let Some(limit) = limit {
            options.machine = options.machine.with_memory(&[limit]).unwrap();
        }
        let Ok(plan) = plan(&profile, &options) else {
            panic!("{chunks} chunks, {memory:?}");
        };
        computed += usize::from(plan.computed.is_some());
        let schedule = plan.generate().unwrap();
        let costs = plan.costs(&profile, &options, &schedule);
        let simulation = simulate(&schedule, &costs);
        let what = format!("{chunks} chunks, {memory:?}");
        assert_eq!(simulation.makespan(), plan.step, "{what}");
        assert_eq!(simulation.peak_bytes(), plan.peak_bytes, "{what}");
        let most = plan.peak_bytes.iter().max().copied();
        assert!(limit.is_none_or(|limit| most <= Some(limit)), "{what}");
    }
    assert!(computed > 1, "{computed} computed schedules");
}

#[test]
fn a_fixed_schedule_and_chunks_are_kept() {
    let mut options = options(2);
    options.schedule = Some(ScheduleKind::GPipe);
    options.chunks = Some(1);
    options.micro_batches = Some(4);
    let plan = plan(&profile(&[1.0; 6]), &options).unwrap();
    assert_eq!(
        (plan.schedule, plan.chunks, plan.micro_batches),
        (ScheduleKind::GPipe, 1, 4)
    );
    assert_eq!(plan.partition.balance(), [3, 3]);
    assert_eq!(plan.bottleneck.get(), 9.0);
    assert_eq!(plan.step.get(), 45.0);
    assert!(plan.alternatives.is_empty());
}

#[test]
fn memory_decides_between_recompute_and_refusal() {
    let mut options = options(2);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(4);
    // A layer takes 4 MiB with gradients and AdamW's state, and 4 MiB for each micro-batch in
    // flight. Three layers with two in flight: 36 MiB, or with recompute 24 MiB and the inputs.
    options.machine = options
        .machine
        .with_memory(&["30MiB".parse().unwrap()])
        .unwrap();
    let plan_it = |options: &PlanOptions| plan(&profile(&[1.0; 6]), options);
    let plan = plan_it(&options).unwrap();
    assert_eq!(plan.recompute, [true, false]);
    options.recompute = When::Never;
    let error = plan_it(&options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing fits the memory; nearest is 1f1b with 1 chunk and 4 micro-batches: device 1 \
         needs 32.0 MiB for stage 1 (layers 2..5) and has 30.0 MiB; it fits with 2.0 MiB more on device 1"
    );
}

#[test]
fn the_gradients_of_a_tree_are_counted() {
    let mut options = options(2);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(4);
    let mut peak = |leaves: usize| {
        options.tree = leaves;
        let plan = plan(&profile(&[1.0; 6]), &options).unwrap();
        assert_eq!(plan.partition.balance(), [3, 3]);
        plan.peak_bytes[0].0
    };
    // A stage has 3 MiB of parameters.
    let set = 3 << 20;
    let serial = peak(1);
    for (leaves, sets) in [(2, 2), (4, 3), (8, 3), (64, 3)] {
        assert_eq!(peak(leaves), serial + (sets - 1) * set, "{leaves} leaves");
    }
}

#[test]
fn what_cannot_be_is_said() {
    let text = |options: &PlanOptions| plan(&profile(&[1.0; 2]), options).unwrap_err().to_string();
    assert_eq!(
        text(&options(3)),
        "no schedule exists for 3 devices and 2 layers: every stage needs a layer"
    );
    let mut fixed = options(2);
    fixed.tree = 6;
    assert!(text(&fixed).starts_with("a tree of 6 leaves: it has a power of two"));
    fixed.tree = 1;
    fixed.micro_batches = Some(0);
    assert!(text(&fixed).starts_with("0 micro-batches"));
    fixed.micro_batches = Some(8);
    fixed.batch = Some(4);
    assert!(text(&fixed).contains("does not make 8 micro-batches"));
}

#[test]
fn the_number_of_micro_batches_is_chosen() {
    let plan = plan(&profile(&[2.0; 8]), &options(4)).unwrap();
    // Times are proportional to the size, so the finest split idles least.
    assert_eq!(plan.micro_batches, 32);
    assert_eq!(plan.micro_batch_size, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// No simpler choice is faster than the plan.
    #[test]
    fn no_built_in_with_an_even_cut_is_faster(
        times in prop::collection::vec(1_u32..20, 4..9),
        devices in 1_usize..4,
    ) {
        let times: Vec<f64> = times.into_iter().map(f64::from).collect();
        let profile = profile(&times);
        let mut options = options(devices);
        options.micro_batches = Some(2 * devices);
        let plan = plan(&profile, &options).unwrap();
        for kind in [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
            let schedule = kind.generate(Shape::new(devices, 2 * devices)).unwrap();
            let problem = Problem::new(&profile, 4, &options.machine, &schedule);
            let solution = problem.solve().unwrap();
            let costs = problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload);
            prop_assert!(plan.step <= simulate(&schedule, &costs).makespan());
        }
    }
}

#[test]
fn options_for_which_no_schedule_exists_are_refused_without_a_profile() {
    let mut options = PlanOptions::new(Machine::new(2).unwrap());
    options.batch = Some(32);
    assert_eq!(options.check(9), Ok(()));
    options.schedule = Some(ScheduleKind::GPipe);
    options.chunks = Some(2);
    let error = options.check(9).unwrap_err();
    assert!(
        error.to_string().contains("one chunk per device"),
        "{error}"
    );
    options.schedule = None;
    options.chunks = Some(5);
    let error = options.check(9).unwrap_err();
    assert!(
        error.to_string().contains("every stage needs a layer"),
        "{error}"
    );
    options.chunks = None;
    options.micro_batches = Some(33);
    assert!(matches!(options.check(9), Err(PlanError::Options(_))));
}

#[test]
fn plans_know_of_more_devices_than_cores() {
    // The best cut depends on waits for turns.
    let profile = profile(&[1.0; 9]);
    let mut options = options(3);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(4);
    options.chunks = Some(1);
    let even = plan(&profile, &options).unwrap();
    assert_eq!(even.partition.balance(), [3, 3, 3]);
    let cores = crate::Cores::new(2, 1).unwrap();
    options.machine = options.machine.with_cores(cores);
    let shared = plan(&profile, &options).unwrap();
    let schedule = shared.generate().unwrap();
    let problem = Problem::new(&profile, 4, &options.machine, &schedule);
    let step = |partition: &Partition| {
        let costs = problem.stage_costs(partition, &even.recompute, &even.offload);
        simulate(&schedule, &costs).makespan()
    };
    assert!(
        step(&even.partition) > even.step,
        "cores that are shared cost time"
    );
    // Never less than the time of all cores for all the work.
    assert!(shared.step.get() >= 9.0 * 3.0 * 4.0 / 2.0);
    let all = Partition::all(9, 3, 100).unwrap();
    assert_eq!(all.len(), 28);
    let best = all.iter().map(step).min().unwrap();
    assert_eq!(shared.step, best);
}

/// Regression: for 14 devices and 128 samples only up to 7 micro-batches were tried: counts that
/// split the samples unevenly were left out without a replacement near them.
#[test]
fn numbers_of_micro_batches_that_do_not_split_evenly_have_neighbours_that_are_tried() {
    let counts = options(14).micro_counts(128, (1, 128));
    assert_eq!(counts, [1, 7, 13, 26, 43, 64]);
    assert_eq!(options(4).micro_counts(64, (1, 64)), [1, 2, 4, 8, 16, 32]);
    // No more samples than were measured, if possible.
    assert_eq!(options(4).micro_counts(64, (1, 10)), [7, 8, 16, 32]);
    assert_eq!(options(4).micro_counts(64, (8, 4)), [1, 2, 4, 8]);
    for samples in 1..300 {
        for micro in options(6).micro_counts(samples, (1, 300)) {
            let all = samples.div_ceil(samples.div_ceil(micro));
            assert_eq!(all, micro, "{samples} samples");
        }
    }
}

/// A transformer whose blocks compute as long as their activations take to the host.
fn deep(blocks: usize) -> Profile {
    let layer = |name: String, us: f64, gib: u64| {
        let time = |share: f64| Micros::new(us * share).unwrap();
        LayerProfile::new(name, LayerTimes::new(time(1.0), time(1.35), time(0.83))).with_bytes(
            Bytes(3 << 30),
            Bytes(gib << 30),
            Bytes(768 << 20),
        )
    };
    let mut layers: Vec<_> = (0..blocks)
        .map(|number| layer(format!("block.{number}"), 77_000.0, 8))
        .collect();
    layers.push(layer("head".to_owned(), 37_000.0, 8));
    Profile::new("cuda:0", 1, layers).unwrap()
}

/// Regression: the fastest cut with offload does not always give the fastest step, so a plan was
/// slower than the one without.
#[test]
fn leaving_offload_open_is_never_slower_than_forbidding_it() {
    let mut offloading = 0;
    for (blocks, gib, link, micro_batches) in [
        (8, 62, "55GB/s,8us", 16),
        (8, 70, "55GB/s,8us", 16),
        (8, 70, "400GB/s,8us", 16),
        (7, 70, "400GB/s,8us", 32),
    ] {
        let profile = deep(blocks);
        let link = HostLink {
            to_host: link.parse().unwrap(),
            to_device: link.parse().unwrap(),
        };
        let machine = Machine::new(8).unwrap().with_host_link(link);
        let mut open = PlanOptions::new(machine.with_memory(&[Bytes(gib << 30)]).unwrap());
        open.micro_batches = Some(micro_batches);
        let mut never = open.clone();
        never.offload = When::Never;
        let plan = |options: &PlanOptions| plan(&profile, options).unwrap();
        let (open, never) = (plan(&open), plan(&never));
        assert!(
            open.step <= never.step,
            "{blocks} blocks, {gib} GiB: {} {}",
            open.step,
            never.step
        );
        let single = open.computed.as_ref().map(|own| !own.offloads().is_empty());
        offloading += usize::from(open.offload.contains(&true) || single == Some(true));
    }
    assert!(offloading > 0);
}
