//! Expected results of a step over affine stages, computed without an engine, stage by stage and
//! micro-batch by micro-batch.

use super::affine::{Grads, bias, combine, weight};
use super::input;
use gpipe_engine::{EdgeId, EdgeValues, End, Topology};
use gpipe_partitioner::{MicroId, StageId};
use std::collections::HashMap;

#[derive(Debug, PartialEq, Eq)]
pub struct Expected {
    pub exits: EdgeValues<i64>,
    pub gradients: EdgeValues<i64>,
    /// Per stage, accumulated in increasing micro-batch order.
    pub grads: Vec<Grads>,
}

/// Computes one step over `topology` with the caller's values of `seed`.
pub fn oracle(topology: &Topology, micros: usize, training: bool, seed: i64) -> Expected {
    let mut expected = Expected {
        exits: EdgeValues::new(),
        gradients: EdgeValues::new(),
        grads: vec![Grads::default(); topology.stages()],
    };
    for micro in (0..micros).map(MicroId) {
        let x = forward(topology, micro, seed, &mut expected);
        if training {
            backward(topology, micro, &x, &mut expected);
        }
    }
    expected
}

/// Returns the input of every stage.
fn forward(topology: &Topology, micro: MicroId, seed: i64, expected: &mut Expected) -> Vec<i64> {
    let mut values: HashMap<EdgeId, i64> = topology
        .outgoing(End::Caller)
        .map(|(edge, _)| (edge, input(edge.index(), micro, seed)))
        .collect();
    let mut xs = Vec::new();
    for stage in (0..topology.stages()).map(StageId) {
        let inputs: Vec<i64> = topology
            .incoming(End::Stage(stage))
            .map(|(edge, _)| values[&edge])
            .collect();
        let x = combine(&inputs);
        let y = weight(stage).wrapping_mul(x).wrapping_add(bias(stage));
        xs.push(x);
        for (place, (edge, to)) in topology.outgoing(End::Stage(stage)).enumerate() {
            let value = y.wrapping_mul(place as i64 + 1);
            values.insert(edge, value);
            if to.to == End::Caller {
                expected.exits.insert((edge, micro), value);
            }
        }
    }
    xs
}

fn backward(topology: &Topology, micro: MicroId, xs: &[i64], expected: &mut Expected) {
    let mut gradients: HashMap<EdgeId, i64> = HashMap::new();
    for stage in (0..topology.stages()).rev().map(StageId) {
        let mut gradient = 0i64;
        for (place, (edge, to)) in topology.outgoing(End::Stage(stage)).enumerate() {
            let part = match to.to {
                End::Caller => 1,
                End::Stage(_) => gradients.get(&edge).copied().unwrap_or(0),
            };
            gradient = gradient.wrapping_add(part.wrapping_mul(place as i64 + 1));
        }
        expected.grads[stage.index()].add(gradient, xs[stage.index()], micro);
        for (place, (edge, from)) in topology.incoming(End::Stage(stage)).enumerate() {
            if !from.gradient {
                continue;
            }
            let part = weight(stage)
                .wrapping_mul(gradient)
                .wrapping_mul(place as i64 + 1);
            gradients.insert(edge, part);
            if from.from == End::Caller {
                expected.gradients.insert((edge, micro), part);
            }
        }
    }
}
