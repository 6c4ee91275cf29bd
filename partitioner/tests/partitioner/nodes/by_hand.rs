//! Small cases, computed in the comments.

use gpipe_partitioner::{
    Bytes, Costs, EdgeTimes, LayerProfile, LayerTimes, Link, Machine, Micros, Nodes, Partition,
    Plan, PlanOptions, Problem, Profile, ScheduleKind, Shape, StageId, plan, simulate,
};

use gpipe_partitioner::simulate::SensitivityTarget;

use super::{link, micros};

/// Returns layers of 10 µs for F, I and W each, with these output bytes.
fn profile(outputs: &[u64]) -> Profile {
    let layer = |&output: &u64| {
        let time = micros(10.0);
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(1000),
            Bytes(100),
            Bytes(output),
        )
    };
    Profile::new("cpu", 1, outputs.iter().map(layer).collect()).unwrap()
}

fn options(machine: Machine, micro: usize) -> PlanOptions {
    let mut options = PlanOptions::new(machine);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(micro);
    options.chunks = Some(1);
    options
}

/// Four stages on two nodes, one micro-batch. 1000 bytes take 1 µs within a node, and 10 µs plus 5
/// µs of latency between nodes. There: 4 F, two hops of 1, one of 15; back with 4 B the same: 40 +
/// 17 + 80 + 17.
#[test]
fn a_value_between_nodes_takes_the_link_between_them() {
    let nodes = Nodes::new(vec![2, 2], link(100, 5)).unwrap();
    let machine = Machine::new(4).unwrap().with_link(link(1000, 0));
    let machine = machine.with_nodes(nodes).unwrap();
    let plan = plan(&profile(&[1000; 4]), &options(machine, 1)).unwrap();
    assert_eq!(plan.step, micros(154.0));
}

/// 1F1B with F 1, B 2: the last backward of stage s ends at 33 - 2 s. An all-reduce of 2 begins
/// then: those of stages 3, 2, 1 end at 29, 31, 33 and so no later than the last action; stage 0's
/// ends at 35, and only its 2 are exposed.
#[test]
fn the_all_reduce_hides_in_the_cooldown_but_for_the_first_stage() {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(4, 8)).unwrap();
    let unit = micros(1.0);
    let all_reduce = EdgeTimes {
        occupancy: micros(1.5),
        latency: micros(0.5),
    };
    let costs = Costs::uniform(4, unit, unit, unit);
    let costs = (0..4).fold(costs, |c, stage| {
        c.with_exchange(StageId(stage), all_reduce)
    });
    let simulation = simulate(&schedule, &costs);
    let timeline = &simulation.timeline;
    let found = timeline.exchanges().iter();
    let found: Vec<_> = found
        .map(|own| {
            (
                own.stage.index(),
                own.device.index(),
                own.start.get(),
                own.end.get(),
            )
        })
        .collect();
    let expected = [
        (3, 3, 27.0, 29.0),
        (2, 2, 29.0, 31.0),
        (1, 1, 31.0, 33.0),
        (0, 0, 33.0, 35.0),
    ];
    assert_eq!(found, expected);
    assert_eq!(timeline.exposed(), micros(2.0));
    assert_eq!(simulation.makespan(), micros(35.0));
    let path = simulation.critical_path();
    let work: Micros = (0..4).map(|stage| path.work(StageId(stage))).sum();
    assert_eq!((path.exchange, work), (micros(2.0), micros(33.0)));
}

/// Two replicas of a device whose two stages have 1000 bytes of gradients each, on two nodes with
/// 100 bytes per microsecond between them: 2 · 1/2 · 1000 bytes take 10 µs each. Forwards and
/// backwards of one micro-batch take 2 · 10 + 2 · 20; stage 1's gradients are complete at 40 and
/// summed at 50, while stage 0 still runs; stage 0's at 60 and 70.
#[test]
fn a_stage_is_exchanged_while_its_device_works_on() {
    let nodes = Nodes::new(vec![1, 1], link(100, 0)).unwrap();
    let machine = Machine::new(1).unwrap().with_replicas(2).unwrap();
    let machine = machine.with_nodes(nodes).unwrap();
    let profile = profile(&[0, 0]);
    let shape = Shape::new(1, 1).with_chunks(2);
    let schedule = ScheduleKind::LoopedBfs.generate(shape).unwrap();
    let problem = Problem::new(&profile, 1, &machine, &schedule);
    let cut = Partition::from_balance(2, &[1, 1]).unwrap();
    let costs = problem.stage_costs(&cut, &[false; 2], &[false; 2]);
    let timeline = simulate(&schedule, &costs).timeline;
    let found = timeline.exchanges().iter();
    let found: Vec<_> = found.map(|own| (own.start.get(), own.end.get())).collect();
    assert_eq!(found, [(40.0, 50.0), (60.0, 70.0)]);
    assert_eq!(
        (timeline.makespan(), timeline.exposed()),
        (micros(70.0), micros(10.0))
    );
}

/// One device with two stages of F 10, B 20: gradients are complete at 40 and at 60. An exchange of
/// 30 occupies the link until 70, and the other one has to wait; each has a latency of 5.
#[test]
fn exchanges_of_a_device_queue_on_its_link() {
    let schedule = ScheduleKind::LoopedBfs
        .generate(Shape::new(1, 1).with_chunks(2))
        .unwrap();
    let all_reduce = EdgeTimes {
        occupancy: micros(30.0),
        latency: micros(5.0),
    };
    let ten = micros(10.0);
    let costs = Costs::uniform(2, ten, ten, ten);
    let costs = (0..2).fold(costs, |c, stage| {
        c.with_exchange(StageId(stage), all_reduce)
    });
    let timeline = simulate(&schedule, &costs).timeline;
    let found = timeline.exchanges().iter();
    let found: Vec<_> = found.map(|own| (own.start.get(), own.end.get())).collect();
    assert_eq!(found, [(40.0, 75.0), (70.0, 105.0)]);
}

/// As above, but only the last stage has gradients, which take from 27 to 77: everything before
/// stage 3's last backward limits the step, not the cooldown after it.
#[test]
fn the_critical_path_ends_with_the_exchange_that_ends_last() {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(4, 8)).unwrap();
    let unit = micros(1.0);
    let all_reduce = EdgeTimes {
        occupancy: micros(50.0),
        latency: Micros::ZERO,
    };
    let costs = Costs::uniform(4, unit, unit, unit).with_exchange(StageId(3), all_reduce);
    let simulation = simulate(&schedule, &costs);
    assert_eq!(simulation.makespan(), micros(77.0));
    let path = simulation.critical_path();
    let last = path.steps.last().unwrap().span;
    assert_eq!((last.action.stage, last.end), (StageId(3), micros(27.0)));
    assert_eq!(path.exchange, micros(50.0));
    let best = simulation.sensitivities()[0];
    assert_eq!(best.target, SensitivityTarget::Exchange);
    // Down to the 6 that the cooldown takes anyway.
    assert!((best.saves.get() - 44.0).abs() < 0.5, "{best:?}");
}

/// Equal layers, of which the fourth has a large output: if it ends a node, the next cut is better
/// though less even.
#[test]
fn a_cut_between_nodes_looks_for_a_small_value() {
    let outputs = [10, 10, 10, 4000, 10, 10, 10, 10];
    let planned = |between: Link| {
        let nodes = Nodes::new(vec![2, 2], between).unwrap();
        let machine = Machine::new(4).unwrap().with_link(link(1000, 0));
        let machine = machine.with_nodes(nodes).unwrap();
        plan(&profile(&outputs), &options(machine, 8)).unwrap()
    };
    let border = |plan: &Plan| plan.partition.range(StageId(2)).start;
    assert_eq!(border(&planned(link(1000, 0))), 4);
    assert_ne!(border(&planned(link(10, 0))), 4);
}

#[test]
fn plans_say_replicas_and_nodes_and_are_read_back() {
    let nodes = Nodes::new(vec![3, 5], link(100, 5)).unwrap();
    let machine = Machine::new(4).unwrap().with_link(link(1000, 1));
    let machine = machine.with_replicas(2).unwrap();
    let machine = machine
        .with_nodes(nodes.clone().with_nic_per_device(true))
        .unwrap();
    let options = options(machine, 12);
    let profile = profile(&[10; 8]);
    let made = plan(&profile, &options).unwrap();
    assert_eq!(
        (made.micro_batches, made.micro_batches_each(), made.replicas),
        (12, 6, 2)
    );
    let read = Plan::from_json(made.to_json(), "plan.json").unwrap();
    assert_eq!(read, made);
    let schedule = read.generate().unwrap();
    let simulation = simulate(&schedule, &read.costs(&profile, &options, &schedule));
    assert_eq!(simulation.makespan(), made.step);
    assert!(simulation.timeline.exposed() > Micros::ZERO);

    let json: serde_json::Value = serde_json::from_str(&made.to_json()).unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut other = json.clone();
        change(&mut other);
        Plan::from_json(other.to_string(), "plan.json")
            .unwrap_err()
            .to_string()
    };
    let error = refused(&|plan| plan["nodes"]["devices"] = serde_json::json!([3, 4]));
    assert!(
        error.contains("nodes.devices: must add up to 2 replicas of 4"),
        "{error}"
    );
    let error = refused(&|plan| plan["micro_batches"] = serde_json::json!(13));
    assert!(
        error.contains("micro_batches: must be a multiple of the 2 replicas"),
        "{error}"
    );
    let error = refused(&|plan| plan["nodes"]["link"]["bytes_per_second"] = serde_json::json!(0));
    assert!(error.contains("nodes.link.bytes_per_second"), "{error}");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let machine = Machine::new(2).unwrap().with_replicas(4).unwrap();
    let refused =
        |options: &PlanOptions| plan(&profile(&[10; 4]), options).unwrap_err().to_string();
    assert_eq!(
        refused(&options(machine.clone(), 6)),
        "6 micro-batches for 4 replicas: each takes as many, so it must be a multiple of 4"
    );
    let mut few = PlanOptions::new(machine.clone());
    few.batch = Some(3);
    assert!(refused(&few).contains("not one for each of 4 replicas"));
    let error = machine
        .with_nodes(Nodes::new(vec![4], link(1, 0)).unwrap())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the nodes have 4 devices, and there are 8"
    );
    assert!(Machine::new(2).unwrap().with_replicas(0).is_err());
    assert!(Machine::new(2).unwrap().with_replicas(usize::MAX).is_err());
}
