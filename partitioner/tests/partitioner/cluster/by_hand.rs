//! Small cases, computed in the comments.

use gpipe_partitioner::{
    Bytes, Card, Cluster, ClusterOptions, Neighbours, NodeKind, Plan, PlanError, ScheduleKind,
    plan_cluster, what_more,
};

use super::{Layer, profile};

/// Returns `count` layers of 10 µs per pass with these bytes: parameters, activations, output.
fn layers(count: usize, bytes: [u64; 3]) -> Vec<Layer> {
    vec![([10.0; 3], bytes); count]
}

fn cluster(nodes: usize, cards: usize, memory: Option<u64>) -> Cluster {
    let card = Card {
        memory: memory.map(Bytes),
        ..Card::default()
    };
    let kind = NodeKind { nodes, cards, card };
    // 1000 bytes take 1 µs within a node and 100 µs between nodes.
    let cluster = Cluster::new(vec![kind], Some("10MB/s,1us".parse().unwrap())).unwrap();
    cluster.with_link_inside("1GB/s,1us".parse().unwrap())
}

fn planned(layers: &[Layer], options: &ClusterOptions) -> Plan {
    let (plan, _) = plan_cluster(&profile(layers), options).unwrap();
    Plan::from_json(plan.to_json(), "plan.json").unwrap()
}

/// Few bytes of parameters: each card has the whole model and one of eight samples.
#[test]
fn little_to_exchange_is_data_parallel() {
    let options = ClusterOptions::new(cluster(2, 4, None), 8);
    let plan = planned(&layers(4, [1, 1, 1]), &options);
    assert_eq!((plan.replicas, plan.devices()), (8, 1));
    assert_eq!(plan.lower_bound, Some(plan.step));
    assert!(!plan.alternatives.is_empty());
}

/// 40 kB of parameters between nodes take 4 ms, as often as there are replicas on two nodes; a
/// value of 100 bytes takes 11 µs.
#[test]
fn much_to_exchange_stays_within_a_node() {
    let mut options = ClusterOptions::new(cluster(2, 2, None), 32);
    options.devices = Some(2);
    let plan = planned(&layers(4, [10_000, 1, 100]), &options);
    assert_eq!((plan.replicas, plan.neighbours), (2, Neighbours::Replicas));
    // With outputs a thousand times as large, the pipeline stays within the node.
    let plan = planned(&layers(4, [10, 1, 100_000]), &options);
    assert_eq!((plan.replicas, plan.neighbours), (2, Neighbours::Stages));
}

/// A layer of 100 bytes has 400 with gradients and AdamW's moments. With four replicas that share
/// the moments, each has 100 + 100 + 50.
#[test]
fn the_optimizer_is_shared_where_memory_asks_for_it() {
    let mut options = ClusterOptions::new(cluster(1, 4, Some(260)), 4);
    options.replicas = Some(4);
    let plan = planned(&layers(1, [100, 5, 1]), &options);
    assert!(plan.shard_optimizer);
    options.cluster = cluster(1, 4, Some(500));
    assert!(!planned(&layers(1, [100, 5, 1]), &options).shard_optimizer);
}

/// One node is half as fast: with one micro-batch in flight, it gets 4 of 12 layers.
#[test]
fn a_slow_node_gets_fewer_layers() {
    let node = |speed| NodeKind {
        nodes: 1,
        cards: 1,
        card: Card {
            speed,
            ..Card::default()
        },
    };
    let between = Some("1GB/s,0us".parse().unwrap());
    let cluster = Cluster::new(vec![node(1.0), node(0.5)], between).unwrap();
    let mut options = ClusterOptions::new(cluster, 32);
    (options.devices, options.replicas) = (Some(2), Some(1));
    (options.schedule, options.chunks) = (Some(ScheduleKind::OneFOneB), Some(1));
    let plan = planned(&layers(12, [1, 1, 1]), &options);
    let mut balance = plan.partition.balance();
    balance.sort_unstable();
    assert_eq!(balance, [4, 8]);
}

#[test]
fn what_is_fixed_is_kept() {
    let mut options = ClusterOptions::new(cluster(2, 2, None), 16);
    options.replicas = Some(2);
    options.neighbours = Some(Neighbours::Stages);
    options.schedule = Some(ScheduleKind::GPipe);
    options.micro_batch_size = Some(2);
    let plan = planned(&layers(6, [10, 1, 1]), &options);
    assert_eq!((plan.replicas, plan.schedule), (2, ScheduleKind::GPipe));
    assert_eq!((plan.micro_batch_size, plan.micro_batches), (2, 8));
    assert!(plan.devices() == 1 || plan.neighbours == Neighbours::Stages);
    for other in &plan.alternatives {
        assert_eq!((other.replicas, other.schedule), (2, ScheduleKind::GPipe));
    }
}

/// Two layers of 1,000 bytes take 8,000 with gradients and moments: 4,000 on each of two cards, or,
/// with shared moments, more.
#[test]
fn what_does_not_fit_says_what_would() {
    let options = ClusterOptions::new(cluster(1, 2, Some(1000)), 4);
    let error = plan_cluster(&profile(&layers(2, [1000, 5, 1])), &options).unwrap_err();
    let PlanError::Shortage {
        cards,
        states,
        more,
        more_cards,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((*cards, *states), (2, Bytes(8000)));
    let more = more.unwrap();
    // Gradients exist after activations are gone: 4,000 is the least.
    assert!((3000..3100).contains(&more.get()), "{more:?}");
    assert_eq!(*more_cards, None);
    let text = error.to_string();
    assert!(
        text.starts_with("nothing fits 2 cards of 1000 B: parameters, "),
        "{text}"
    );
    assert!(text.contains("it fits with 3.0 KiB more on each"), "{text}");
    // With eight layers of the same total, more cards suffice.
    let small = profile(&layers(8, [250, 5, 1]));
    let error = plan_cluster(&small, &options).unwrap_err();
    let PlanError::Shortage { more_cards, .. } = error else {
        panic!("{error:?}");
    };
    // One layer per card.
    assert_eq!(more_cards, Some(8));
}

#[test]
fn what_cannot_be_is_said() {
    let text = |change: &dyn Fn(&mut ClusterOptions)| {
        let mut options = ClusterOptions::new(cluster(1, 2, None), 4);
        change(&mut options);
        let error = plan_cluster(&profile(&layers(2, [1, 1, 1])), &options);
        error.unwrap_err().to_string()
    };
    assert!(text(&|own| own.batch = 0).starts_with("a mini-batch of 0 samples"));
    assert!(text(&|own| own.replicas = Some(3)).contains("the cluster has 2 cards"));
    assert!(text(&|own| own.micro_batches = Some(5)).contains("must be from 1 to 4"));
    assert!(text(&|own| own.micro_batch_size = Some(5)).contains("of the mini-batch"));
    assert!(text(&|own| own.schedule = Some(ScheduleKind::Auto)).contains("`auto` is none"));
    assert!(text(&|own| own.devices = Some(0)).contains("from 1 to 2"));
    assert!(text(&|own| (own.chunks) = Some(3)).contains("every stage needs a layer"));
}

#[test]
fn more_of_something_is_never_slower() {
    let joined = cluster(1, 2, Some(5000));
    // Regression: a node sold with eight cards only got the gain of a ninth.
    let alone = Cluster::new(joined.kinds().to_vec(), None).unwrap();
    let alone = alone.with_link_inside("1GB/s,1us".parse().unwrap());
    for (cluster, wanted) in [(joined, "one more node"), (alone, "one more card")] {
        let options = ClusterOptions::new(cluster, 8);
        let model = profile(&layers(6, [100, 50, 10]));
        let (plan, _) = plan_cluster(&model, &options).unwrap();
        let more = what_more(&model, &options, &plan);
        let what: Vec<&str> = more.iter().map(|own| own.what.as_str()).collect();
        assert_eq!(what, [wanted, "1.0 GiB more on each card"]);
        assert!(more.iter().all(|own| own.step <= plan.step));
        assert!(more[0].step < plan.step || wanted == "one more node");
    }
}

/// 512 nodes of eight cards. The benchmarks measure this case.
#[test]
fn a_thousand_layers_on_four_thousand_cards_are_planned() {
    let card = Card {
        memory: Some("40GiB".parse().unwrap()),
        ..Card::default()
    };
    let kind = NodeKind {
        nodes: 512,
        cards: 8,
        card,
    };
    let cluster = Cluster::new(vec![kind], Some("25GB/s,8us".parse().unwrap())).unwrap();
    let cluster = cluster.with_link_inside("300GB/s,3us".parse().unwrap());
    let options = ClusterOptions::new(cluster, 8192);
    // 100 MB of parameters per layer: 400 GB in all.
    let layers: Vec<Layer> = (0..1000)
        .map(|layer| {
            let time = 900.0 + f64::from(layer % 7) * 20.0;
            ([time; 3], [100_000_000, 200_000_000, 10_000_000])
        })
        .collect();
    let plan = planned(&layers, &options);
    let bound = plan.lower_bound.unwrap();
    assert!(bound <= plan.step);
    // Memory requires a recompute, which the bound does not include.
    assert!(plan.step.get() < bound.get() * 1.6, "{bound} {}", plan.step);
}
