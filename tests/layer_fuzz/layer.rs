//! Operations of a program's layer, shared by the pipeline and the plain loop: a layer's inside is user code,
//! which neither inspects.

use anyhow::Result;
use gpipe::tch::{Device, Kind, Tensor};

use crate::machine::Machine;
use crate::program::{Layer, Op, Program};

/// The last dimension of weights and biases.
pub(crate) const WIDTH: i64 = 6;

/// The services that a pass offers to a layer.
pub(crate) trait Pass {
    fn train(&self) -> bool;
    fn micro(&self) -> usize;
    fn stash(&self, name: &str, value: Option<&Tensor>) -> Result<()>;
    fn pop(&self, name: &str) -> Result<Option<Tensor>>;
    /// Records the result of an operation.
    fn note(&self, text: impl FnOnce() -> String);
}

/// A tensor that a layer owns.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<i64>,
    pub(crate) trainable: bool,
    seed: usize,
}

/// A layer of a program, and the facts about the others that it needs.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) layer: Layer,
    pub(crate) kind: Kind,
    /// Names that it may stash or pop, restricted to those with both ends.
    pub(crate) stashes: Vec<usize>,
    pub(crate) pops: Vec<usize>,
    /// The layer whose weight this layer's weight is tied to.
    pub(crate) tied_to: Option<usize>,
    pub(crate) owns: Vec<Own>,
}

/// Plans the layers of a program.
pub(crate) fn plans(program: &Program) -> Vec<Plan> {
    let layers = &program.layers;
    let first_tied = layers.iter().position(|l| l.tied && uses_weight(l));
    let mut plans: Vec<Plan> = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let origin = |name| layers.iter().position(|l| stashes(l, name));
        let names = || 0..2_usize;
        let stashed = names().filter(|&name| {
            origin(name) == Some(number) && layers[number + 1..].iter().any(|l| pops(l, name))
        });
        let popped = names()
            .filter(|&name| pops(layer, name) && origin(name).is_some_and(|from| from < number));
        let tied = layer.tied && uses_weight(layer);
        plans.push(Plan {
            name: format!("l{number}"),
            kind: kind(program),
            stashes: stashed.collect(),
            pops: popped.collect(),
            tied_to: first_tied.filter(|&first| tied && first != number),
            owns: owns(layer, number),
            layer: layer.clone(),
        });
    }
    plans
}

/// Floating-point type of a program.
pub(crate) fn kind(program: &Program) -> Kind {
    if program.batch.double {
        Kind::Double
    } else {
        Kind::Float
    }
}

fn stashes(layer: &Layer, wanted: usize) -> bool {
    let own = |op: &Op| matches!(op, Op::Stash { name, .. } if *name == wanted);
    layer.ops.iter().any(own)
}

fn pops(layer: &Layer, wanted: usize) -> bool {
    let own = |op: &Op| matches!(op, Op::Pop { name } if *name == wanted);
    layer.ops.iter().any(own)
}

fn uses_weight(layer: &Layer) -> bool {
    let uses = |op: &Op| {
        matches!(
            op,
            Op::Linear(_) | Op::Embed(_) | Op::Weight | Op::SpectralNorm(_)
        )
    };
    layer.ops.iter().any(uses)
}

fn owns(layer: &Layer, number: usize) -> Vec<Own> {
    let any = |wanted: fn(&Op) -> bool| layer.ops.iter().any(wanted);
    let mut owns = Vec::new();
    let mut own = |name, shape: &[i64], trainable| {
        owns.push(Own {
            name,
            shape: shape.to_vec(),
            trainable,
            seed: number * 10 + owns.len(),
        });
    };
    if uses_weight(layer) {
        own("weight", &[WIDTH, WIDTH], true);
    }
    if any(|op| {
        matches!(
            op,
            Op::Linear(_) | Op::TimesBiasIn(_) | Op::AddBiasIn(_) | Op::CopyBiasIn(_)
        )
    }) {
        own("bias", &[WIDTH], true);
    }
    if layer.idle {
        own("idle", &[3], true);
    }
    if any(|op| matches!(op, Op::Center(_) | Op::CenterBefore(_))) {
        own("mean", &[WIDTH], false);
    }
    if any(|op| matches!(op, Op::Count(_))) {
        own("count", &[1], false);
    }
    if any(|op| matches!(op, Op::SpectralNorm(_))) {
        own("direction", &[WIDTH], false);
    }
    owns
}

impl Own {
    /// The initial values.
    pub(crate) fn values(&self, kind: Kind) -> Tensor {
        numbers(&self.shape, self.seed, kind) * 0.7
    }
}

/// Fixed numbers between -1 and 1, without the process-wide generator.
pub(crate) fn numbers(shape: &[i64], seed: usize, kind: Kind) -> Tensor {
    let count: i64 = shape.iter().product();
    let values: Vec<f64> = (0..count as u64)
        .map(|i| {
            // SplitMix64 (Steele et al. 2014).
            let mut z = (seed as u64 * 1_000_003 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        })
        .collect();
    Tensor::from_slice(&values).to_kind(kind).view(shape)
}

/// A built layer.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) plan: Plan,
    own: Vec<Tensor>,
}

impl Body {
    /// Builds a layer with tensors made by `make`, one for each that the plan names.
    pub(crate) fn new(plan: &Plan, mut make: impl FnMut(&Own, Tensor) -> Tensor) -> Self {
        let own = plan.owns.iter();
        Self {
            own: own.map(|own| make(own, own.values(plan.kind))).collect(),
            plan: plan.clone(),
        }
    }

    pub(crate) fn forward(
        &self,
        inputs: Vec<Option<Tensor>>,
        pass: &impl Pass,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut machine = Machine::new(inputs, self, pass);
        for op in &self.plan.layer.ops {
            machine.run(*op)?;
        }
        Ok(machine.outputs(&self.plan.layer.outputs))
    }

    /// One of its tensors, for use in an operation.
    pub(crate) fn own(&self, name: &str) -> Tensor {
        let place = self.plan.owns.iter().position(|own| own.name == name);
        self.own[place.unwrap()].shallow_clone()
    }

    /// All of its tensors.
    pub(crate) fn owned(&self) -> impl Iterator<Item = (&Own, &Tensor)> {
        self.plan.owns.iter().zip(&self.own)
    }
}

/// Device of all tensors.
pub(crate) const CPU: Device = Device::Cpu;
