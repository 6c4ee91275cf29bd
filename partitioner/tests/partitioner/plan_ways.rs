//! `plan`'s choices of recompute, offload and CUDA graphs, against every choice.

use gpipe_partitioner::{
    Bytes, Cores, HostLink, LayerProfile, LayerTimes, Link, Machine, Micros, Plan, PlanOptions,
    Problem, Profile, ScheduleKind, Shape, When, plan, simulate,
};
use proptest::prelude::*;

fn micros(time: u32) -> Micros {
    Micros::new(f64::from(time)).unwrap()
}

/// Returns times of the device and of its host, activations and temporaries, and whether it can be
/// captured.
fn layer() -> impl Strategy<Value = LayerProfile> {
    let times = || [1_u32..30, 1_u32..30, 1_u32..30];
    (times(), times(), 1_u64..100, 0_u64..20, any::<bool>()).prop_map(
        |(device, host, activations, temporary, captures)| {
            let times = |[forward, input, weight]: [u32; 3]| {
                LayerTimes::new(micros(forward), micros(input), micros(weight))
            };
            let layer = LayerProfile::new("layer", times(device))
                .with_bytes(Bytes(10), Bytes(activations), Bytes(5))
                .with_temporary(Bytes(temporary))
                .with_host(times(host));
            if captures {
                layer
            } else {
                layer.without_graphs("it draws")
            }
        },
    )
}

/// A case with a single cut: as many stages as layers.
#[derive(Clone, Debug)]
struct Case {
    profile: Profile,
    options: PlanOptions,
}

fn case() -> impl Strategy<Value = Case> {
    let kinds = prop::sample::select(vec![
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ]);
    let link = prop::option::of((1_u64..20, 1_u64..20));
    let layers = prop::collection::vec(layer(), 1..4);
    (layers, kinds, 1_usize..6, 100_u64..1500, link).prop_map(
        |(layers, kind, micro, memory, link)| {
            let devices = layers.len();
            let mut machine = Machine::new(devices).unwrap();
            machine = machine.with_memory(&[Bytes(memory)]).unwrap();
            if let Some((there, back)) = link {
                let link = |speed: u64| Link::new(Bytes(speed * 500_000), micros(1)).unwrap();
                machine = machine.with_host_link(HostLink {
                    to_host: link(there),
                    to_device: link(back),
                });
            }
            let mut options = PlanOptions::new(machine);
            options.schedule = Some(kind);
            options.micro_batches = Some(micro);
            options.chunks = Some(1);
            let profile = Profile::new("cuda:0", 4, layers)
                .unwrap()
                .with_input(Bytes(5));
            let profile = profile.with_graph_replay(micros(2));
            Case { profile, options }
        },
    )
}

/// Returns the steps of all choices that fit.
fn steps(case: &Case) -> Vec<f64> {
    let Case { profile, options } = case;
    let devices = options.machine.devices().len();
    let shape = Shape::new(devices, options.micro_batches.unwrap());
    let schedule = options.schedule.unwrap().generate(shape).unwrap();
    let partition = gpipe_partitioner::Partition::uniform(devices, devices).unwrap();
    let limit = options.machine.devices()[0].memory.unwrap();
    let may_leave = options.machine.host_link().is_some();
    let mut steps = Vec::new();
    for choice in 0..1_usize << (2 * devices + 1) {
        let bit = |place: usize| choice >> place & 1 == 1;
        let recompute: Vec<bool> = (0..devices).map(bit).collect();
        let offload: Vec<bool> = (0..devices).map(|s| bit(devices + s)).collect();
        if offload.contains(&true) && !may_leave {
            continue;
        }
        let graphs = bit(2 * devices).then(|| profile.graph_replay());
        let problem = Problem::new(profile, 4, &options.machine, &schedule).with_graphs(graphs);
        let costs = problem.stage_costs(&partition, &recompute, &offload);
        let simulation = simulate(&schedule, &costs);
        if simulation.peak_bytes().iter().all(|&peak| peak <= limit) {
            steps.push(simulation.makespan().get());
        }
    }
    steps
}

fn own_step(case: &Case, plan: &Plan) -> (f64, Vec<Bytes>) {
    let schedule = plan.generate().unwrap();
    let costs = plan.costs(&case.profile, &case.options, &schedule);
    let simulation = simulate(&schedule, &costs);
    (simulation.makespan().get(), simulation.peak_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A plan fits, takes as long as it says, and is never better than the best choice; an open choice
    /// of graphs is never worse than none.
    #[test]
    fn a_plan_is_among_the_choices_that_fit(case in case()) {
        let Ok(plan) = plan(&case.profile, &case.options) else {
            return Ok(());
        };
        let (step, peaks) = own_step(&case, &plan);
        prop_assert_eq!(step, plan.step.get());
        prop_assert_eq!(&peaks, &plan.peak_bytes);
        let limit = case.options.machine.devices()[0].memory.unwrap();
        prop_assert!(peaks.iter().all(|&peak| peak <= limit));
        let best = steps(&case).into_iter().fold(f64::INFINITY, f64::min);
        prop_assert!(step >= best);
        let read = Plan::from_json(plan.to_json(), "p").unwrap();
        prop_assert_eq!(&read, &plan);
        let mut without = case.options.clone();
        without.cuda_graphs = When::Never;
        if let Ok(other) = gpipe_partitioner::plan(&case.profile, &without) {
            prop_assert!(!other.cuda_graphs && plan.step <= other.step);
        }
    }

    /// Regression: more work on one of several devices that take turns can change their order: a stage
    /// recomputed without any memory limit, and the plan was called memory-bound.
    #[test]
    fn without_a_limit_nothing_is_recomputed(
        times in prop::collection::vec([1_u32..20, 1_u32..20, 1_u32..20], 4), micro in 3_usize..6
    ) {
        let layer = |[forward, input, weight]: &[u32; 3]| {
            let times = LayerTimes::new(micros(*forward), micros(*input), micros(*weight));
            LayerProfile::new("layer", times).with_bytes(Bytes(10), Bytes(50), Bytes(5))
        };
        let machine = Machine::new(4).unwrap().with_cores(Cores::new(2, 1).unwrap());
        let mut options = PlanOptions::new(machine);
        options.schedule = Some(ScheduleKind::ZbH2);
        options.micro_batches = Some(micro);
        options.chunks = Some(1);
        let profile = Profile::new("cpu", 4, times.iter().map(layer).collect()).unwrap();
        let plan = plan(&profile, &options).unwrap();
        prop_assert!(!plan.recompute.contains(&true), "{:?}", plan.recompute);
    }

    /// With enough memory a plan is the best of all choices, if replaying a graph takes no more time
    /// than the host takes without: otherwise a stage that offloads only to avoid graphs can be faster,
    /// which the search does not consider.
    #[test]
    fn with_room_enough_a_plan_is_the_best_choice(mut case in case()) {
        case.profile = case.profile.with_graph_replay(micros(1));
        let machine = case.options.machine.clone().with_memory(&[Bytes(1 << 40)]);
        case.options.machine = machine.unwrap();
        // Some schedules need more micro-batches.
        let Ok(plan) = plan(&case.profile, &case.options) else {
            return Ok(());
        };
        let best = steps(&case).into_iter().fold(f64::INFINITY, f64::min);
        prop_assert_eq!(plan.step.get(), best);
    }
}
