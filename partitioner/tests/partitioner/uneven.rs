//! Stages as uneven as files and flags permit: no generator of schedules and no solver panics, and
//! every result passes its check, fits the memory and is not below its bound.

use gpipe_partitioner::{
    Bytes, Card, CheckedSchedule, Cluster, ClusterOptions, Cores, Costs, EdgeTimes, Effort,
    HostLink, LayerProfile, LayerTimes, Link, Machine, Micros, NodeKind, Nodes, OffloadTimes, Plan,
    PlanError, PlanOptions, Problem, Profile, ScheduleError, ScheduleKind, Shape, StageId,
    StageMemory, StageTimes, Strategy as Cut, When, auto_in_a_row, auto_within, plan, plan_cluster,
    simulate,
};
use proptest::prelude::*;

fn micros() -> impl Strategy<Value = Micros> {
    let times = vec![0.0, 1.0, 3.0, 10.0, 20.0, 100.0, 150.0, 1e4, 1e9];
    prop::sample::select(times).prop_map(|time| Micros::new(time).unwrap())
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec![0, 1, 7, 40, 100, 300, 1 << 20, 1 << 50]).prop_map(Bytes)
}

/// From less than a stage needs to more than all need.
fn limit() -> impl Strategy<Value = Option<Bytes>> {
    let limits = vec![0, 60, 200, 700, 3000, 1 << 22, 1 << 60];
    prop::option::of(prop::sample::select(limits).prop_map(Bytes))
}

fn edge() -> impl Strategy<Value = EdgeTimes> {
    (micros(), micros()).prop_map(|(occupancy, latency)| EdgeTimes { occupancy, latency })
}

/// A stage: times, memory, the next transfer, the exchange, transfers to the host and back.
fn stage() -> impl Strategy<Value = (StageTimes, StageMemory, [EdgeTimes; 4])> {
    let times = prop::array::uniform5(micros());
    let memory = (
        prop::array::uniform5(bytes()),
        prop::array::uniform5(bytes()),
    );
    let ways = prop::array::uniform4(edge());
    (times, memory, prop::option::of(bytes()), ways).prop_map(|(times, memory, kept, ways)| {
        let [forward, backward, input, weight, recompute] = times;
        let (
            [parameters, gradients, optimizer, activation, sent],
            [recomputed, working, again, away, offloaded],
        ) = memory;
        let memory = StageMemory {
            parameters,
            gradients,
            optimizer,
            activation,
            offloaded: offloaded.min(activation),
            recomputed,
            recomputable: again.min(activation),
            offloadable: away.min(activation),
            kept_for_weight: kept,
            sent,
            working,
            ..StageMemory::default()
        };
        let times = StageTimes {
            forward,
            backward,
            input,
            weight,
            recompute,
        };
        (times, memory, ways)
    })
}

fn costs(stages: usize) -> impl Strategy<Value = Costs> {
    let simple = any::<[bool; 3]>();
    (prop::collection::vec(stage(), stages), simple).prop_map(|(stages, [links, memory, ways])| {
        let times = stages.iter().map(|(times, ..)| *times).collect();
        let mut costs = Costs::new(times);
        for (number, (_, own, [edge, exchange, out, back])) in stages.into_iter().enumerate() {
            let stage = StageId(number);
            if links {
                costs = costs.with_edge(stage, edge);
            }
            if memory {
                costs = costs.with_memory(stage, own);
            }
            if ways {
                let away = OffloadTimes {
                    to_host: out,
                    to_device: back,
                    pieces: 1,
                };
                costs = costs
                    .with_exchange(stage, exchange)
                    .with_single_offload(stage, away);
            }
        }
        costs
    })
}

/// Shape within these numbers of devices and micro-batches, its costs, and limits of the devices.
fn pipeline(
    devices: usize,
    micro: usize,
) -> impl Strategy<Value = (Shape, Costs, Vec<Option<Bytes>>)> {
    (1..=devices, 1_usize..=2, 1..=micro).prop_flat_map(|(p, v, m)| {
        let shape = Shape::new(p, m).with_chunks(v);
        (
            Just(shape),
            costs(shape.stages()),
            prop::collection::vec(limit(), p),
        )
    })
}

fn keeps_to(peaks: Vec<Bytes>, limits: &[Option<Bytes>]) -> bool {
    let mut all = peaks.into_iter().zip(limits);
    all.all(|(peak, limit)| limit.is_none_or(|limit| peak <= limit))
}

/// Whether a computed schedule passes the check of every schedule.
fn is_legal(schedule: &CheckedSchedule) -> bool {
    schedule.is_training() && schedule.schedule().clone().check().is_ok()
}

fn is_an_answer(error: &ScheduleError) -> bool {
    matches!(error, ScheduleError::NothingFits { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_built_in_schedule_runs_to_its_end((shape, costs, _) in pipeline(8, 16)) {
        for kind in ScheduleKind::ALL {
            if let Ok(schedule) = kind.generate(shape) {
                prop_assert!(schedule.schedule().clone().check().is_ok(), "{kind} {shape:?}");
                let step = simulate(&schedule, &costs);
                prop_assert_eq!(step.timeline.devices(), shape.devices);
            }
        }
    }

    #[test]
    fn a_schedule_is_computed_for_any_costs((shape, costs, caps) in pipeline(4, 7)) {
        let effort = Effort { states: 8, moves: 64 };
        match auto_within(shape, &costs, &caps, None, effort) {
            Ok(found) => {
                prop_assert!(is_legal(&found.schedule));
                prop_assert!(found.lower_bound <= found.simulation.makespan());
                prop_assert!(keeps_to(found.simulation.peak_bytes(), &caps));
            }
            Err(error) => prop_assert!(is_an_answer(&error), "{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Regression: the warm-up of staggered schedules gave a middle stage more forwards than the one before.
    #[test]
    fn a_schedule_is_computed_for_steps_in_a_row_of_any_costs(
        (shape, costs, caps) in pipeline(4, 5),
        steps in 1_usize..4,
    ) {
        match auto_in_a_row(shape, &costs, &caps, None, steps) {
            Ok(found) => {
                prop_assert!(is_legal(&found.schedule));
                let all = found.schedule.schedule().in_a_row(steps).check();
                let all = simulate(&all.unwrap(), &costs);
                prop_assert_eq!(all.makespan(), found.simulation.makespan());
            }
            Err(error) => prop_assert!(is_an_answer(&error), "{error}"),
        }
    }
}

/// Regression: for forwards of three stages, the first or the last slower than the middle one, a
/// schedule of steps in a row was read out of bounds.
#[test]
fn steps_in_a_row_have_a_schedule_where_an_early_stage_is_slower_than_the_next() {
    let micros = |time: f64| Micros::new(time).unwrap();
    for [first, middle, last] in [
        [100.0, 20.0, 100.0],
        [150.0, 50.0, 100.0],
        [200.0, 90.0, 100.0],
    ] {
        for micro_batches in [4, 8] {
            let times = [first, middle, last].map(|forward| StageTimes {
                forward: micros(forward),
                backward: micros(200.0),
                input: micros(100.0),
                weight: micros(100.0),
                recompute: micros(forward),
            });
            let shape = Shape::new(3, micro_batches);
            let costs = Costs::new(times.to_vec());
            let found = auto_in_a_row(shape, &costs, &[], None, 3).unwrap();
            assert!(is_legal(&found.schedule), "{times:?}");
        }
    }
}

fn layer() -> impl Strategy<Value = LayerProfile> {
    let host = prop::option::of(prop::array::uniform3(micros()));
    let amounts = prop::array::uniform5(bytes());
    (prop::array::uniform5(micros()), host, amounts).prop_map(|(times, host, amounts)| {
        let [forward, input, weight, joint, again] = times;
        let mut times = LayerTimes::new(forward, input, weight);
        (times.backward, times.recompute) = (Some(joint), Some(again));
        let [parameters, activations, output, temporary, kept] = amounts;
        let layer = LayerProfile::new("layer", times)
            .with_bytes(parameters, activations, output)
            .with_temporary(temporary)
            .with_after_input(kept);
        match host {
            Some([f, i, w]) => layer.with_host(LayerTimes::new(f, i, w)),
            None => layer.without_graphs("it draws"),
        }
    })
}

fn profile(layers: usize) -> impl Strategy<Value = Profile> {
    let layers = prop::collection::vec(layer(), 1..=layers);
    (layers, 1_usize..5).prop_map(|(layers, batch)| Profile::new("cpu", batch, layers).unwrap())
}

fn link() -> impl Strategy<Value = Link> {
    let speeds = vec![1, 1000, 1 << 30, 1 << 50];
    (prop::sample::select(speeds), micros())
        .prop_map(|(speed, latency)| Link::new(Bytes(speed), latency).unwrap())
}

fn speed() -> impl Strategy<Value = f64> {
    prop::sample::select(vec![1e-3, 0.5, 1.0, 1.0, 7.0, 1e3])
}

/// Devices with their own speeds and limits, links, replicas on one or two nodes, shared cores.
fn machine(devices: usize) -> impl Strategy<Value = Machine> {
    let each = (speed(), limit());
    let links = (
        prop::option::of(link()),
        prop::option::of(link()),
        prop::option::of((link(), any::<bool>())),
    );
    let each = prop::collection::vec(each, 1..=devices);
    (each, links, 1_usize..=2, prop::option::of(1_usize..3)).prop_map(
        |(each, (inside, host, between), replicas, cores)| {
            let mut machine = Machine::new(each.len()).unwrap();
            let speeds: Vec<f64> = each.iter().map(|own| own.0).collect();
            machine = machine.with_speeds(&speeds).unwrap();
            if let Some(limits) = each.iter().map(|own| own.1).collect::<Option<Vec<_>>>() {
                machine = machine.with_memory(&limits).unwrap();
            }
            if let Some(link) = inside {
                machine = machine.with_link(link);
            }
            if let Some(link) = host {
                let (to_host, to_device) = (link, link);
                machine = machine.with_host_link(HostLink { to_host, to_device });
            }
            machine = machine.with_replicas(replicas).unwrap();
            let all = each.len() * replicas;
            match (between, cores) {
                (Some((link, own)), _) if all > 1 => {
                    let nodes = Nodes::new(vec![1, all - 1], link).unwrap();
                    machine.with_nodes(nodes.with_nic_per_device(own)).unwrap()
                }
                (_, Some(cores)) if replicas == 1 => {
                    machine.with_cores(Cores::new(cores, 1).unwrap())
                }
                _ => machine,
            }
        },
    )
}

fn when() -> impl Strategy<Value = When> {
    prop::sample::select(vec![When::Never, When::Auto, When::Always])
}

/// Whether a plan agrees with its own simulation, within the memory of every device.
fn holds(profile: &Profile, plan: &Plan, options: &PlanOptions) -> bool {
    let schedule = plan.generate().unwrap();
    let simulation = simulate(&schedule, &plan.costs(profile, options, &schedule));
    let devices = options.machine.devices().iter();
    let limits: Vec<_> = devices.map(|device| device.memory).collect();
    simulation.makespan() == plan.step
        && plan.partition.layers() == profile.layers().len()
        && plan.lower_bound.is_none_or(|bound| bound <= plan.step)
        && keeps_to(plan.peak_bytes.clone(), &limits)
}

fn refuses_for_memory(error: &PlanError) -> bool {
    use PlanError::{NoSchedule, NoneFits, Options, Shortage};
    matches!(
        error,
        NoSchedule { .. } | NoneFits { .. } | Options(_) | Shortage { .. }
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_cut_of_any_layers_keeps_to_the_memory(
        profile in profile(9),
        machine in machine(4),
        (chunks, micro) in (1_usize..3, 1_usize..6),
        (recompute, offload) in (when(), when()),
        kind in prop::sample::select(ScheduleKind::ALL.to_vec()),
    ) {
        let shape = Shape::new(machine.devices().len(), micro).with_chunks(chunks);
        let Ok(schedule) = kind.generate(shape) else { return Ok(()) };
        let offload = if machine.host_link().is_some() { offload } else { When::Never };
        let problem = Problem::new(&profile, profile.batch(), &machine, &schedule)
            .with_recompute(recompute)
            .with_offload(offload);
        let cuts = [Cut::Profile, Cut::Parameters, Cut::Uniform];
        let solved = cuts.iter().map(|cut| problem.solve_by(cut));
        for solution in solved.chain([problem.solve_under(&schedule)]).flatten() {
            let layers: usize = solution.partition.balance().iter().sum();
            prop_assert_eq!(layers, profile.layers().len());
            let mut held = vec![Bytes::ZERO; shape.devices];
            for (stage, bytes) in solution.stage_bytes.iter().enumerate() {
                held[schedule.device_of(StageId(stage)).index()] += *bytes;
            }
            let limits: Vec<_> = machine.devices().iter().map(|own| own.memory).collect();
            prop_assert!(keeps_to(held, &limits), "{solution:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_plan_of_any_layers_is_what_its_simulation_says(
        profile in profile(6),
        machine in machine(3),
        (micro, batch) in (prop::option::of(1_usize..5), prop::option::of(1_usize..9)),
        (recompute, offload, graphs) in (when(), when(), when()),
    ) {
        let mut options = PlanOptions::new(machine);
        options.micro_batches = micro.map(|own| own * options.machine.replicas());
        options.batch = batch;
        (options.recompute, options.offload) = (recompute, offload);
        options.cuda_graphs = graphs;
        if options.machine.host_link().is_none() {
            options.offload = When::Auto;
        }
        match plan(&profile, &options) {
            Ok(plan) => prop_assert!(holds(&profile, &plan, &options), "{plan:?}"),
            Err(error) => prop_assert!(refuses_for_memory(&error), "{error}"),
        }
    }

    #[test]
    fn a_cluster_of_any_cards_has_a_plan_or_an_answer(
        profile in profile(6),
        kinds in prop::collection::vec((1_usize..3, 1_usize..4, speed(), limit()), 1..3),
        (inside, between, own) in (prop::option::of(link()), link(), any::<bool>()),
        batch in 1_usize..20,
    ) {
        let kind = |&(nodes, cards, speed, memory): &(usize, usize, f64, Option<Bytes>)| NodeKind {
            nodes,
            cards,
            card: Card { speed, memory, peak: None },
        };
        let cluster = Cluster::new(kinds.iter().map(kind).collect(), Some(between)).unwrap();
        let cluster = cluster.with_nic_per_card(own);
        let cluster = match inside {
            Some(link) => cluster.with_link_inside(link),
            None => cluster,
        };
        match plan_cluster(&profile, &ClusterOptions::new(cluster, batch)) {
            Ok((plan, options)) => prop_assert!(holds(&profile, &plan, &options), "{plan:?}"),
            Err(error) => prop_assert!(refuses_for_memory(&error), "{error}"),
        }
    }
}
