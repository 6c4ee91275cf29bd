//! Exact cuts against the block-partition heuristic, and the times of cuts and plans.
//!
//! `cargo bench -p gpipe-partitioner --bench partition`

use std::time::Instant;

mod growth;

use criterion::{Criterion, criterion_group};
use gpipe_partitioner::machine::cluster::KnownNode;
use gpipe_partitioner::solve::block_partition;
use gpipe_partitioner::{
    Bytes, CheckedSchedule, ClusterOptions, LayerProfile, LayerTimes, Machine, Micros, Partition,
    PlanOptions, Problem, Profile, ScheduleKind, Shape, StageId, plan, plan_cluster,
};

use growth::{Report, grows};

/// A small generator, so that every run sees the same chains (Steele, Lea, Flood: splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn micros(us: f64) -> Micros {
    Micros::new(us).unwrap_or(Micros::ZERO)
}

fn random_profile(random: &mut Random, layers: usize) -> anyhow::Result<Profile> {
    let layer = |index| {
        let mut time = || micros((1 + random.below(1000)) as f64);
        let times = LayerTimes::new(time(), time(), time());
        let mut bytes = |limit| Bytes(random.below(limit));
        let (parameters, activations, output) = (bytes(1 << 24), bytes(1 << 24), bytes(1 << 20));
        LayerProfile::new(format!("layer.{index}"), times).with_bytes(
            parameters,
            activations,
            output,
        )
    };
    Ok(Profile::new(
        "synthetic",
        8,
        (0..layers).map(layer).collect(),
    )?)
}

/// Prints how far each method's largest part is from the optimum over 2,000 random chains.
fn compare(what: &str, weight: fn(&mut Random) -> u64) {
    const CHAINS: u32 = 2000;
    let mut random = Random(1);
    let mut methods = [
        ("block heuristic", 0, 1.0_f64, 0.0),
        ("block heuristic, weights less the smallest", 0, 1.0, 0.0),
        ("uniform", 0, 1.0, 0.0),
        ("exact", 0, 1.0, 0.0),
    ];
    for _ in 0..CHAINS {
        let layers = 8 + random.below(57) as usize;
        let stages = 2 + random.below(7) as usize;
        let weights: Vec<u64> = (0..layers).map(|_| weight(&mut random)).collect();
        let smallest = weights.iter().min().copied().unwrap_or(0);
        let less: Vec<u64> = weights.iter().map(|weight| weight - smallest).collect();
        let heaviest = |balance: &[usize]| {
            let mut rest = weights.as_slice();
            let mut parts = Vec::new();
            for &count in balance {
                let (part, after) = rest.split_at(count);
                parts.push(part.iter().sum::<u64>());
                rest = after;
            }
            parts.into_iter().max().unwrap_or(0)
        };
        let of = |partition: Result<Partition, _>| partition.map(|p| p.balance());
        let (Ok(exact), Ok(uniform)) = (
            of(Partition::by_weight(&weights, stages)),
            of(Partition::uniform(layers, stages)),
        ) else {
            continue;
        };
        let optimum = heaviest(&exact);
        let balances = [
            block_partition(&weights, stages),
            block_partition(&less, stages),
            uniform,
            exact,
        ];
        for (method, balance) in methods.iter_mut().zip(&balances) {
            let ratio = heaviest(balance) as f64 / optimum as f64;
            method.1 += u32::from(heaviest(balance) == optimum);
            method.2 = method.2.max(ratio);
            method.3 += ratio / f64::from(CHAINS);
        }
    }
    println!("{CHAINS} random chains of 8 to 64 layers over 2 to 8 stages, {what}:");
    for (name, optimal, worst, mean) in methods {
        let share = f64::from(optimal) / f64::from(CHAINS) * 100.0;
        println!("  {name:44} optimal {share:5.1} %   worst {worst:.3}   mean {mean:.4}");
    }
}

fn timed<R>(what: &str, run: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = run();
    println!("  {what:64} {:8.3} s", start.elapsed().as_secs_f64());
    result
}

/// The same size with equal layers: almost any cut will do, so the search finds nothing to prune.
fn wide(schedule: &CheckedSchedule, machine: &Machine) -> anyhow::Result<()> {
    let chain = |time: fn(usize) -> f64| {
        let layer = |index| {
            let time = micros(time(index));
            LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
                Bytes(1 << 10),
                Bytes(1 << 10),
                Bytes(1 << 10),
            )
        };
        Profile::new("synthetic", 8, (0..10_000).map(layer).collect())
    };
    let giant = |index| if index == 5000 { 1e6 } else { 1.0 };
    for (what, profile) in [
        (
            "... one layer of the chain as long as 100 chains",
            chain(giant)?,
        ),
        ("... all layers equal", chain(|_| 1.0)?),
        ("... no layer takes any time", chain(|_| 0.0)?),
    ] {
        let problem = Problem::new(&profile, 8, machine, schedule);
        let solution = timed(what, || problem.solve())?;
        anyhow::ensure!(solution.is_optimal(), "not the optimum");
    }
    let mut weights = vec![1; 10_000];
    weights[5000] = 1 << 20;
    timed("by_weight, one layer has almost all the weight", || {
        Partition::by_weight(&weights, 1024)
    })?;
    Ok(())
}

/// Plans 1,000 layers on 512 nodes of eight cards, with all choices.
fn cluster() -> anyhow::Result<()> {
    let layer = |index: usize| {
        let time = micros(900.0 + (index % 7) as f64 * 20.0);
        let layer = LayerProfile::new("layer", LayerTimes::new(time, time, time));
        layer.with_bytes(Bytes(100_000_000), Bytes(200_000_000), Bytes(10_000_000))
    };
    let profile = Profile::new("synthetic", 1, (0..1000).map(layer).collect())?;
    let cluster = KnownNode::named("dgx-a100-40gb")?.cluster(512)?;
    let options = ClusterOptions::new(cluster, 8192);
    let what = "plan_cluster, 1,000 layers, 4,096 cards, all choices";
    let (plan, _) = timed(what, || plan_cluster(&profile, &options))?;
    println!(
        "    {} v={} d={} p={} m={}: step {}, bound {:?}",
        plan.schedule,
        plan.chunks,
        plan.replicas,
        plan.devices(),
        plan.micro_batches,
        plan.step,
        plan.lower_bound,
    );
    Ok(())
}

/// Runs the cuts and plans that are meant to be fast, once each.
fn large() -> anyhow::Result<()> {
    println!("once each:");
    let mut random = Random(2);
    let profile = random_profile(&mut random, 10_000)?;
    let weights = profile.parameter_bytes();
    timed("by_weight, 10,000 layers, 1,024 stages", || {
        Partition::by_weight(&weights, 1024)
    })?;
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(1024, 16))?;
    let free = Machine::new(1024)?;
    let linked = free.clone().with_link("25GB/s,5us".parse()?);
    let capped = linked.clone().with_memory(&["8GiB".parse()?])?;
    let speeds: Vec<f64> = (0..1024)
        .map(|device| 1.0 + f64::from(device % 7) / 10.0)
        .collect();
    let unequal = capped.clone().with_speeds(&speeds)?;
    for (what, machine) in [
        ("exact, 10,000 layers, 1,024 stages", &free),
        ("... with links", &linked),
        ("... with links and memory limits", &capped),
        (
            "... with links, memory limits and unequal devices",
            &unequal,
        ),
    ] {
        let problem = Problem::new(&profile, 8, machine, &schedule);
        let solution = timed(what, || problem.solve())?;
        anyhow::ensure!(solution.is_optimal(), "not the optimum");
        anyhow::ensure!((0..1024).all(|s| !solution.partition.range(StageId(s)).is_empty()));
    }
    wide(&schedule, &unequal)?;
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(8, 16))?;
    let problem = Problem::new(
        &profile,
        8,
        &Machine::new(8)?.with_link("25GB/s,5us".parse()?),
        &schedule,
    );
    timed("exact, 10,000 layers, 8 stages, with links", || {
        problem.solve()
    })?;
    cluster()?;
    let profile = random_profile(&mut random, 200)?;
    for (what, memory) in [
        ("plan, 200 layers, 64 devices", "24GiB"),
        ("plan, 200 layers, 64 devices, memory tight", "400MiB"),
    ] {
        let machine = Machine::new(64)?.with_link("25GB/s,5us".parse()?);
        let options = PlanOptions::new(machine.with_memory(&[memory.parse()?])?);
        match timed(what, || plan(&profile, &options)) {
            Ok(plan) => println!(
                "    {} v={} m={}: step {}, idle {:.1} %, {} runners-up",
                plan.schedule,
                plan.chunks,
                plan.micro_batches,
                plan.step,
                plan.bubble_fraction * 100.0,
                plan.alternatives.len()
            ),
            Err(error) => println!("    {error}"),
        }
    }
    for (layers, devices) in [(100, 64), (10_000, 1024)] {
        let profile = random_profile(&mut random, layers)?;
        let machine = Machine::new(devices)?.with_link("25GB/s,5us".parse()?);
        let what = format!("plan, {layers} layers, {devices} devices");
        let plan = timed(&what, || plan(&profile, &PlanOptions::new(machine)))?;
        println!(
            "    {} m={}: step {}",
            plan.schedule, plan.micro_batches, plan.step
        );
    }
    Ok(())
}

fn partition(criterion: &mut Criterion) {
    compare("weights from 1 to 1,000", |random| 1 + random.below(1000));
    compare("few heavy layers among light ones", |random| {
        1000 / (1 + random.below(200))
    });
    if let Err(error) = large() {
        println!("  failed: {error}");
    }
    let mut random = Random(3);
    let weights: Vec<u64> = (0..200).map(|_| 1 + random.below(1000)).collect();
    criterion.bench_function("by_weight 200 layers, 16 stages", |b| {
        b.iter(|| Partition::by_weight(&weights, 16));
    });
    criterion.bench_function("block heuristic 200 layers, 16 stages", |b| {
        b.iter(|| block_partition(&weights, 16));
    });
}

/// Growth with layers and with stages: the even filling is stated as stages times layers, and the
/// exact cut, which prunes, is held to the same; a plan is linear in layers and, like its
/// schedules, in devices.
fn growing(report: &mut Report) -> anyhow::Result<()> {
    let mut random = Random(4);
    let layers = [500, 1000, 2000, 4000, 8000];
    let stages = [8, 16, 32, 64, 128];
    let profile = random_profile(&mut random, 8000)?;
    let weights = profile.parameter_bytes();
    grows(
        report,
        "by_weight in layers, 64 stages",
        1.0,
        &layers,
        |n| Partition::by_weight(&weights[..n], 64),
    );
    grows(
        report,
        "by_weight in stages, 4,000 layers",
        1.0,
        &stages,
        |p| Partition::by_weight(&weights[..4000], p),
    );
    let profiles = layers
        .map(|n| random_profile(&mut random, n).map(|profile| (n, profile)))
        .into_iter()
        .collect::<anyhow::Result<std::collections::HashMap<_, _>>>()?;
    let exact = |profile: &Profile, p| -> anyhow::Result<_> {
        let schedule = ScheduleKind::OneFOneB.generate(Shape::new(p, 16))?;
        let machine = Machine::new(p)?.with_link("25GB/s,5us".parse()?);
        Ok(Problem::new(profile, 8, &machine, &schedule).solve()?)
    };
    grows(
        report,
        "exact cut in layers, 64 stages",
        1.0,
        &layers,
        |n| exact(&profiles[&n], 64),
    );
    grows(
        report,
        "exact cut in stages, 4,000 layers",
        1.0,
        &stages,
        |p| exact(&profiles[&4000], p),
    );
    let small = [50, 100, 200, 400];
    let profiles = small
        .map(|n| random_profile(&mut random, n).map(|profile| (n, profile)))
        .into_iter()
        .collect::<anyhow::Result<std::collections::HashMap<_, _>>>()?;
    let planned = |n, p| -> anyhow::Result<_> {
        let machine = Machine::new(p)?.with_link("25GB/s,5us".parse()?);
        Ok(plan(&profiles[&n], &PlanOptions::new(machine))?)
    };
    grows(report, "plan in layers, 16 devices", 1.0, &small, |n| {
        planned(n, 16)
    });
    // Linear in the p m actions: without a batch, m grows with p.
    grows(
        report,
        "plan in devices and micro-batches, 200 layers",
        2.0,
        &[4, 8, 16, 32],
        |p| planned(200, p),
    );
    Ok(())
}

criterion_group!(benches, partition);

fn main() -> anyhow::Result<()> {
    benches();
    if std::env::args().any(|argument| argument == "--bench") {
        let mut report = Report::new("partition");
        growing(&mut report)?;
        report.write()?;
    }
    Criterion::default().configure_from_args().final_summary();
    Ok(())
}
