//! The search against every possible cut.

use proptest::prelude::*;

use super::Solution;
use super::memory::{AWAY, PLAIN, REDO, Ways};
use super::{Problem, SolveError, Strategy as Cutting, Transfer, When, block_partition};
use crate::builtin::ScheduleKind;
use crate::check::CheckedSchedule;
use crate::cost::{HostLink, Link};
use crate::ids::StageId;
use crate::machine::{Machine, Nodes};
use crate::profile::{LayerProfile, LayerTimes, Profile};
use crate::schedule::Shape;
use crate::units::{Bytes, Micros};

/// A small random case.
#[derive(Clone, Debug)]
struct Case {
    profile: Profile,
    machine: Machine,
    schedule: CheckedSchedule,
    recompute: When,
    transfer: Transfer,
    offload: When,
    graphs: bool,
    tree: usize,
}

impl Case {
    fn problem(&self) -> Problem {
        Problem::new(&self.profile, 4, &self.machine, &self.schedule)
            .with_recompute(self.recompute)
            .with_transfer(self.transfer)
            .with_offload(self.offload)
            .with_graphs(self.graphs.then_some(Micros::ZERO))
            .with_tree(self.tree)
    }
}

/// Between device and host.
fn host_link() -> impl Strategy<Value = HostLink> {
    (1_u64..8, 1_u64..8).prop_map(|(there, back)| {
        let link = |speed| Link::new(Bytes(speed * 250_000), Micros::ZERO).unwrap();
        HostLink {
            to_host: link(there),
            to_device: link(back),
        }
    })
}

/// Nodes, and how many replicas are spread over them.
#[derive(Clone, Debug)]
struct Network {
    replicas: usize,
    /// Of each device whether the next one is on the same node.
    together: Vec<bool>,
    link: Link,
    nic_per_device: bool,
}

impl Network {
    fn around(self, machine: Machine) -> Machine {
        let machine = machine.with_replicas(self.replicas).unwrap();
        let mut nodes = vec![1];
        for together in &self.together[1..machine.devices().len() * self.replicas] {
            match nodes.last_mut() {
                Some(last) if *together => *last += 1,
                _ => nodes.push(1),
            }
        }
        let nodes = Nodes::new(nodes, self.link).unwrap();
        let nodes = nodes.with_nic_per_device(self.nic_per_device);
        machine.with_nodes(nodes).unwrap()
    }
}

fn network() -> impl Strategy<Value = Network> {
    let link = (1_u64..8, 0_u32..10).prop_map(|(bandwidth, latency)| {
        let latency = Micros::new(f64::from(latency)).unwrap();
        Link::new(Bytes(bandwidth * 250_000), latency).unwrap()
    });
    let together = prop::collection::vec(any::<bool>(), 12);
    (1_usize..4, together, link, any::<bool>()).prop_map(
        |(replicas, together, link, nic_per_device)| Network {
            replicas,
            together,
            link,
            nic_per_device,
        },
    )
}

fn layer() -> impl Strategy<Value = LayerProfile> {
    let times = [0_u32..20, 0_u32..20, 0_u32..20].prop_map(|times| {
        let [forward, input, weight] = times.map(|us| Micros::new(f64::from(us)).unwrap());
        LayerTimes::new(forward, input, weight)
    });
    let bytes = [0_u64..30, 0_u64..30, 0_u64..30, 0_u64..10];
    let host = prop::option::of([0_u32..20, 0_u32..20, 0_u32..20]);
    (times, bytes, host).prop_map(|(times, bytes, host)| {
        let [parameters, activations, output, temporary] = bytes;
        let layer = LayerProfile::new("layer", times);
        let layer = match host {
            Some(host) => {
                let [forward, input, weight] = host.map(|us| Micros::new(f64::from(us)).unwrap());
                layer.with_host(LayerTimes::new(forward, input, weight))
            }
            None => layer,
        };
        layer
            .with_bytes(Bytes(parameters), Bytes(activations), Bytes(output))
            .with_temporary(Bytes(temporary))
            .with_halves_temporary(Bytes(temporary / 2), Bytes(temporary / 3))
    })
}

fn shape() -> impl Strategy<Value = (ScheduleKind, Shape)> {
    use ScheduleKind::{ForwardOnly, GPipe, Interleaved1F1B, OneFOneB, ZbH1, Zbv};
    prop_oneof![
        (
            prop::sample::select(vec![GPipe, OneFOneB, ForwardOnly, ZbH1]),
            1_usize..5,
            1_usize..5
        )
            .prop_map(|(kind, p, m)| (kind, Shape::new(p, m))),
        (1_usize..3).prop_map(|p| (Interleaved1F1B, Shape::new(p, 2 * p).with_chunks(2))),
        (1_usize..3).prop_map(|p| (Zbv, Shape::new(p, 2 * p).with_chunks(2))),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let speed = prop::sample::select(vec![0.5, 1.0, 1.0, 2.0]);
    let memory = prop_oneof![Just(None), (0_u64..1500).prop_map(Some)];
    let link = prop::option::of((1_u64..8, 0_u32..10).prop_map(|(bandwidth, latency)| {
        let latency = Micros::new(f64::from(latency)).unwrap();
        Link::new(Bytes(bandwidth * 250_000), latency).unwrap()
    }));
    (
        shape(),
        prop::collection::vec(layer(), 4..8),
        prop::collection::vec(speed, 4),
        prop::collection::vec(memory, 4),
        link,
        prop::sample::select(vec![When::Never, When::Always, When::Auto]),
        prop::sample::select(vec![Transfer::Waited, Transfer::Overlapped]),
        (
            prop::sample::select(vec![When::Never, When::Always, When::Auto]),
            any::<bool>(),
            prop::option::of(host_link()),
            prop::sample::select(vec![1, 1, 2, 8]),
            prop::option::of(network()),
        ),
    )
        .prop_map(
            |((kind, shape), layers, speeds, memory, link, recompute, transfer, host)| {
                let p = shape.devices;
                let memory: Vec<Bytes> = memory[..p]
                    .iter()
                    .map(|m| Bytes(m.unwrap_or(1 << 40)))
                    .collect();
                let machine = Machine::new(p).unwrap().with_speeds(&speeds[..p]).unwrap();
                let machine = machine.with_memory(&memory).unwrap();
                let machine = match host.2 {
                    Some(link) => machine.with_host_link(link),
                    None => machine,
                };
                let machine = match host.4 {
                    Some(network) => network.around(machine),
                    None => machine,
                };
                Case {
                    profile: Profile::new("cpu", 4, layers).unwrap().with_input(Bytes(7)),
                    machine: match link {
                        Some(link) => machine.with_link(link),
                        None => machine,
                    },
                    schedule: kind.generate(shape).unwrap(),
                    recompute,
                    transfer,
                    offload: host.0,
                    graphs: host.1,
                    tree: host.3,
                }
            },
        )
}

/// What the documentation says a stage costs and needs, layer by layer.
fn by_hand(problem: &Problem, stage: usize, mode: usize, start: usize, end: usize) -> (f64, u64) {
    let redo = mode & REDO != 0;
    let slot = problem.stages[stage];
    let layers = &problem.costs[start..end];
    let sum = |of: &dyn Fn(&crate::profile::LayerCost) -> f64| layers.iter().map(of).sum::<f64>();
    let mut time = sum(&|l| l.forward.get());
    time += if slot.split {
        sum(&|l| l.input.get() + l.weight.get())
    } else {
        sum(&|l| l.backward.get())
    };
    if redo {
        time += sum(&|l| l.recompute.get());
    }
    time /= problem.machine.devices()[slot.device.0].speed;
    if stage + 1 < problem.stages.len() && problem.stages[stage + 1].device != slot.device {
        let (next, output) = (
            problem.stages[stage + 1].device,
            layers[layers.len() - 1].output,
        );
        let transfer = problem.machine.transfer(slot.device, next, output);
        let busy = transfer.occupancy.get();
        if problem.transfer == Transfer::Waited {
            let ways = if problem.training { 2.0 } else { 1.0 };
            time += ways * (busy + transfer.latency.get());
        }
        time = time.max(busy);
    }
    let away = mode & AWAY != 0 && slot.leaves;
    if let Some(link) = problem.machine.host_link().filter(|_| away && !redo) {
        let ways = [link.to_host, link.to_device];
        let moved = |link: Link| sum(&|l| link.transfer(l.activations).occupancy.get());
        time = ways.into_iter().map(moved).fold(time, f64::max);
    }
    if !problem.with_graphs_on() {
        let passes = |l: &crate::profile::LayerCost| {
            let halves = l.host.input.get() + l.host.weight.get();
            let backward = if slot.split {
                halves
            } else {
                l.host.backward.get()
            };
            let again = if redo { l.host.recompute.get() } else { 0.0 };
            l.host.forward.get() + backward + again
        };
        time = time.max(sum(&passes));
    }
    (
        time,
        bytes_by_hand(problem, slot.held, (redo, away), start, end),
    )
}

fn bytes_by_hand(
    problem: &Problem,
    held: super::memory::Held,
    (redo, away): (bool, bool),
    start: usize,
    end: usize,
) -> u64 {
    let layers = &problem.costs[start..end];
    let into = |layer: usize| match layer {
        0 => problem.input.0,
        _ => problem.costs[layer - 1].output.0,
    };
    let parameters: u64 = layers.iter().map(|l| l.parameters.0).sum();
    if !problem.training {
        let around = |l: usize| into(l) + problem.costs[l].output.0 + problem.costs[l].temporary.0;
        return parameters + (start..end).map(around).max().unwrap();
    }
    let Ways { joint, halves } = problem.ways;
    let cost = |l: usize| &problem.costs[l];
    let after = |l: usize| if halves { cost(l).after_input.0 } else { 0 };
    let kept = |l: usize| cost(l).activations.0.max(after(l));
    // While a layer runs: what the layers up to it keep, what those behind it keep
    // between the halves, and its temporaries.
    let running = |l: usize| {
        let plain: u64 = (start..=l).map(|l| cost(l).activations.0).sum();
        let halved: u64 = (start..=l).map(after).sum();
        let behind: u64 = (l + 1..end).map(after).sum();
        let mut most = 0;
        if joint {
            most = plain + cost(l).temporary.0;
        }
        if halves {
            most = most.max(plain + behind + cost(l).input_temporary.0);
            most = most.max(halved + cost(l).weight_temporary.0);
        }
        most
    };
    let running = (start..end).map(running).max().unwrap();
    // With gradients and two moments.
    let throughout = (3 + problem.sets) * parameters;
    let activations: u64 = (start..end).map(kept).sum();
    let there = if away {
        held.offloading
    } else {
        held.in_flight
    };
    if problem.with_graphs_on() && !redo && !away {
        return throughout + held.in_flight * (running + parameters + into(start));
    }
    let others = if redo {
        let loss = if end == problem.costs.len() {
            cost(end - 1).loss.0.min(cost(end - 1).activations.0)
        } else {
            0
        };
        let waiting = there.saturating_sub(held.backward) * loss;
        (held.backward - 1) * activations + there * into(start) + waiting
    } else {
        (there - 1) * activations
    };
    throughout + others + running
}

/// Visits every cut with every choice of recompute: (bottleneck, bytes per device).
fn every_cut(problem: &Problem, visit: &mut dyn FnMut(f64, &[u64])) {
    let mut used = vec![0; problem.machine.devices().len()];
    extend(problem, 0, 0, 0.0, &mut used, visit);
}

fn extend(
    problem: &Problem,
    stage: usize,
    start: usize,
    worst: f64,
    used: &mut Vec<u64>,
    visit: &mut dyn FnMut(f64, &[u64]),
) {
    let (stages, layers) = (problem.stages.len(), problem.costs.len());
    if stage == stages {
        return visit(worst, used);
    }
    let last = layers - (stages - stage - 1);
    let first = if stage + 1 == stages {
        layers
    } else {
        start + 1
    };
    for end in first..=last {
        for mode in problem.modes() {
            let (time, bytes) = by_hand(problem, stage, mode, start, end);
            let device = problem.stages[stage].device.0;
            used[device] += bytes;
            extend(problem, stage + 1, end, worst.max(time), used, visit);
            used[device] -= bytes;
        }
    }
}

fn caps(problem: &Problem) -> Vec<u64> {
    let cap = |device: &crate::machine::Device| device.memory.unwrap().0;
    problem.machine.devices().iter().map(cap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The optimum, or the least addition to the limits, is that of trying everything.
    #[test]
    fn solve_is_exact(case in case()) {
        let problem = case.problem();
        let caps = caps(&problem);
        let (mut best, mut least) = (f64::INFINITY, u64::MAX);
        every_cut(&problem, &mut |time, used| {
            let over = used.iter().zip(&caps).map(|(used, cap)| used.saturating_sub(*cap)).max();
            least = least.min(over.unwrap());
            if over == Some(0) {
                best = best.min(time);
            }
        });
        match problem.solve() {
            Ok(solution) => {
                prop_assert!((solution.bottleneck.get() - best).abs() <= 1e-9 * best.max(1.0),
                    "{} instead of {best}", solution.bottleneck.get());
                prop_assert!(solution.is_optimal());
                keeps_its_word(&problem, &solution, &caps)?;
            }
            Err(SolveError::Infeasible(shortfall)) => {
                prop_assert_eq!(best, f64::INFINITY);
                prop_assert_eq!(shortfall.missing().0, least);
                prop_assert_eq!(shortfall.raise[0], (shortfall.device, Bytes(least)));
            }
            Err(SolveError::Partition(_)) => prop_assert!(least == u64::MAX),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// The solution's own numbers are those of its cut, which fits and has no empty stage.
fn keeps_its_word(
    problem: &Problem,
    solution: &Solution,
    caps: &[u64],
) -> Result<(), TestCaseError> {
    let mut used = vec![0; caps.len()];
    for stage in 0..problem.stages.len() {
        let range = solution.partition.range(StageId(stage));
        prop_assert!(!range.is_empty());
        let redo = if solution.recompute[stage] {
            REDO
        } else {
            PLAIN
        };
        let away = if solution.offload[stage] { AWAY } else { PLAIN };
        let mode = redo | away;
        let (time, bytes) = by_hand(problem, stage, mode, range.start, range.end);
        prop_assert!((solution.stage_times[stage].get() - time).abs() < 1e-9);
        prop_assert_eq!(solution.stage_bytes[stage], Bytes(bytes));
        used[problem.stages[stage].device.0] += bytes;
    }
    prop_assert!(used.iter().zip(caps).all(|(used, cap)| used <= cap));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Never worse than the simpler strategies or the block heuristic, whatever they give.
    #[test]
    fn solve_is_never_worse(case in case(), balance_seed in prop::collection::vec(1_usize..4, 4)) {
        let problem = case.problem();
        let stages = problem.stages.len();
        let weights: Vec<u64> = problem.costs.iter()
            .map(|c| (c.forward + c.backward).get() as u64).collect();
        let block = block_partition(&weights, stages);
        let manual: Vec<usize> = balance_seed.iter().copied().cycle().take(stages).collect();
        for other in [Cutting::Parameters, Cutting::Uniform,
                      Cutting::Manual(block), Cutting::Manual(manual)] {
            if let Ok(other) = problem.solve_by(&other) {
                prop_assert!(problem.solve().unwrap().bottleneck <= other.bottleneck);
            }
        }
    }
}

fn uniform_problem(layers: usize, devices: usize, memory: &[Bytes]) -> Problem {
    let time = Micros::new(10.0).unwrap();
    let layer = LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
        Bytes(100),
        Bytes(50),
        Bytes(5),
    );
    let profile = Profile::new("cpu", 1, vec![layer; layers]).unwrap();
    let schedule = ScheduleKind::OneFOneB
        .generate(Shape::new(devices, 8))
        .unwrap();
    let machine = Machine::new(devices).unwrap().with_memory(memory).unwrap();
    Problem::new(&profile, 1, &machine, &schedule)
}

#[test]
fn what_does_not_fit_is_said_with_bytes() {
    let problem = uniform_problem(4, 2, &[Bytes(800)]).with_recompute(When::Never);
    // A layer: 400 of parameters, gradients and state, and 50 for each in flight: 2 and 1.
    // Layers 1 and 3: 500 and 1350; layers 2 and 2: 1000 and 900.
    assert_eq!(
        problem.solve().unwrap_err().to_string(),
        "no cut fits: at best device 0 needs 1000 B for stage 0 (layers 0..1), \
         200 bytes more than its 800 B; it fits with 200 bytes more on device 0, 100 bytes \
         more on device 1"
    );
    let full = problem.solve_by(&Cutting::Manual(vec![1, 3])).unwrap_err();
    assert_eq!(full.shortfall().unwrap().missing(), Bytes(550));
}

#[test]
fn recompute_is_chosen_where_it_is_needed() {
    let problem = uniform_problem(4, 2, &[Bytes(950)]);
    let solution = problem.solve().unwrap();
    assert_eq!(solution.recompute, [true, false]);
    assert_eq!(solution.partition.balance(), [2, 2]);
    assert_eq!(solution.stage_bytes, [Bytes(900), Bytes(900)]);
}

#[test]
fn ties_are_filled_evenly() {
    let memory = [Bytes(u64::MAX)];
    let solution = uniform_problem(12, 4, &memory).solve().unwrap();
    assert_eq!(solution.partition.balance(), [3; 4]);
    let solution = uniform_problem(9, 4, &memory).solve().unwrap();
    assert_eq!(solution.bottleneck.get(), 90.0);
    assert!(solution.partition.balance().iter().all(|&count| count >= 2));
}

/// A layer longer than all others together leaves the other cuts free: they are tried near an
/// even filling first.
#[test]
fn wide_windows_are_searched_near_the_even_filling() {
    let layer = |index: usize| {
        let time = Micros::new(if index == 700 { 1e6 } else { 1.0 }).unwrap();
        LayerProfile::new("layer", LayerTimes::new(time, time, time))
    };
    let profile = Profile::new("cpu", 1, (0..3000).map(layer).collect()).unwrap();
    let schedule = ScheduleKind::OneFOneB
        .generate(Shape::new(1000, 2))
        .unwrap();
    let machine = Machine::new(1000).unwrap();
    let solution = Problem::new(&profile, 1, &machine, &schedule)
        .solve()
        .unwrap();
    assert!(solution.is_optimal());
    assert_eq!(solution.bottleneck.get(), 3e6);
    assert!(solution.partition.balance().iter().all(|&count| count <= 8));
}

#[test]
fn names_are_read_back() {
    for rule in [When::Never, When::Always, When::Auto] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert!("sometimes".parse::<When>().is_err());
    for name in Cutting::NAMES {
        let balance: Option<&[usize]> = (name == "manual").then_some(&[1, 2]);
        assert_eq!(Cutting::from_name(name, balance).unwrap().name(), name);
    }
    assert!(Cutting::from_name("manual", None).is_err());
    assert!(Cutting::from_name("uniform", Some(&[1])).is_err());
}

/// Two chunks a device, limits that only the sum of both decides.
#[test]
fn chunks_share_their_device() {
    let time = Micros::new(10.0).unwrap();
    let layer = |bytes: u64| {
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(bytes),
            Bytes::ZERO,
            Bytes::ZERO,
        )
    };
    // Parameters of 40, 10, 10, 40, 10, 10 units; stages 0 and 2 are on device 0.
    let layers = [40, 10, 10, 40, 10, 10].map(layer).to_vec();
    let profile = Profile::new("cpu", 1, layers).unwrap();
    let shape = Shape::new(2, 4).with_chunks(2);
    let schedule = ScheduleKind::Interleaved1F1B.generate(shape).unwrap();
    let machine = Machine::new(2)
        .unwrap()
        .with_memory(&[Bytes(4 * 70)])
        .unwrap();
    let solution = Problem::new(&profile, 1, &machine, &schedule)
        .solve()
        .unwrap();
    assert!(solution.is_optimal());
    let bytes = |stage: usize| solution.stage_bytes[stage].0;
    assert!(bytes(0) + bytes(2) <= 280 && bytes(1) + bytes(3) <= 280);
}
