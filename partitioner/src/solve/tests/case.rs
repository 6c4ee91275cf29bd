//! Small random cases.

use proptest::prelude::*;

use crate::builtin::ScheduleKind;
use crate::check::CheckedSchedule;
use crate::cost::{HostLink, Link};
use crate::machine::{Machine, Nodes};
use crate::profile::{LayerProfile, LayerTimes, Profile};
use crate::schedule::Shape;
use crate::solve::{Problem, Transfer, When};
use crate::units::{Bytes, Micros};

/// A small random case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) profile: Profile,
    pub(super) machine: Machine,
    pub(super) schedule: CheckedSchedule,
    recompute: When,
    transfer: Transfer,
    offload: When,
    graphs: bool,
    tree: usize,
}

impl Case {
    pub(super) fn problem(&self) -> Problem {
        Problem::new(&self.profile, 4, &self.machine, &self.schedule)
            .with_recompute(self.recompute)
            .with_transfer(self.transfer)
            .with_offload(self.offload)
            .with_graphs(self.graphs.then_some(Micros::ZERO))
            .with_tree(self.tree)
    }
}

/// Returns links between device and host.
fn host_link() -> impl Strategy<Value = HostLink> {
    (1_u64..8, 1_u64..8).prop_map(|(there, back)| {
        let link = |speed| Link::new(Bytes(speed * 250_000), Micros::ZERO).unwrap();
        HostLink {
            to_host: link(there),
            to_device: link(back),
        }
    })
}

/// Nodes, and the number of replicas spread over them.
#[derive(Clone, Debug)]
struct Network {
    replicas: usize,
    /// For each device, whether the next one is on the same node.
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

pub(super) fn case() -> impl Strategy<Value = Case> {
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
