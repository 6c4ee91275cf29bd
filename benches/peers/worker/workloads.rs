//! Training workloads: the same models, data and updates as in `workloads.py`.

use anyhow::Context as _;
use gpipe::tch::{Reduction, Tensor};
use gpipe::{
    Sequential, models,
    optim::{AdamW, OptimizerKind, Sgd},
};

use super::layers::{Block, Bottleneck, Classes, Dense, Embed, Head, Stem, numbered};
use super::numbers::{INPUT, TARGET, integers, symmetric};

/// Mean loss over a workload's outputs and targets.
pub type Loss = fn(&Tensor, &Tensor) -> Tensor;

pub struct Workload {
    pub model: Sequential,
    pub input: Tensor,
    pub target: Tensor,
    pub loss: Loss,
    pub update: OptimizerKind,
    /// Layers per stage for 1, 2 and 4 stages.
    cuts: [Vec<usize>; 3],
}

impl Workload {
    pub fn new(name: &str) -> anyhow::Result<Self> {
        match name {
            "W1" => Ok(decoder()),
            "W2" => Ok(perceptron()),
            "W3" => Ok(tiny()),
            "W4" => Ok(resnet101()),
            _ => anyhow::bail!("no workload {name}: there are W1, W2, W3 and W4"),
        }
    }

    /// Replaces the model with the one that `workloads.py` exported: a sequence of the same layers, some of
    /// them split into several, cut at the same places.
    pub fn exported(mut self, path: &str) -> anyhow::Result<Self> {
        self.model = models::exported(path)?;
        // A layer's name begins with the number of its module.
        let module = |name: &str| name.split('.').next().and_then(|own| own.parse().ok());
        let modules: Option<Vec<usize>> = self.model.names().map(module).collect();
        let modules = modules.context("a layer is in no numbered module")?;
        for cut in &mut self.cuts {
            let mut end = 0;
            for stage in cut {
                let begin = end;
                end += *stage;
                *stage = modules
                    .iter()
                    .filter(|own| (begin..end).contains(own))
                    .count();
            }
        }
        Ok(self)
    }

    /// Layers per stage for `stages` stages, the same for every candidate.
    pub fn balance(&self, stages: usize) -> anyhow::Result<&[usize]> {
        let cut = self.cuts.iter().find(|cut| cut.len() == stages);
        let cut = cut.map(Vec::as_slice);
        cut.ok_or_else(|| anyhow::anyhow!("no cut into {stages} stages: there are 1, 2 and 4"))
    }
}

fn cuts(all: [&[usize]; 3]) -> [Vec<usize>; 3] {
    all.map(<[usize]>::to_vec)
}

fn cross_entropy(out: &Tensor, target: &Tensor) -> Tensor {
    let classes = out.size().last().copied().unwrap_or(1);
    let (out, target) = (out.view([-1, classes]), target.flatten(0, -1));
    out.cross_entropy_loss(&target, None::<Tensor>, Reduction::Mean, -100, 0.0)
}

fn mean_square(out: &Tensor, target: &Tensor) -> Tensor {
    out.mse_loss(target, Reduction::Mean)
}

fn adamw() -> OptimizerKind {
    let rates = AdamW {
        lr: 3e-4,
        ..AdamW::default()
    };
    rates.into()
}

fn sgd(lr: f64) -> OptimizerKind {
    let rates = Sgd {
        lr,
        ..Sgd::default()
    };
    rates.into()
}

/// W1: eight blocks of a decoder of 256 features.
fn decoder() -> Workload {
    let (vocab, sequence, d, heads, blocks, batch) = (512, 128, 256, 4, 8, 32);
    let embed = numbered(1, move |own| Embed::new(own, vocab, sequence, d));
    let mut model = Sequential::new().layer("embed", embed);
    let mut next = 1 + Embed::PARAMETERS;
    for number in 0..blocks {
        let block = numbered(next, move |own| Block::new(own, d, heads));
        model = model.layer(format!("block.{number}"), block);
        next += Block::PARAMETERS;
    }
    let head = numbered(next, move |own| Head::new(own, d, vocab));
    let text = integers(INPUT, &[batch, sequence + 1], vocab.unsigned_abs());
    Workload {
        model: model.layer("head", head),
        input: text.narrow(1, 0, sequence).contiguous(),
        target: text.narrow(1, 1, sequence).contiguous(),
        loss: cross_entropy,
        update: adamw(),
        cuts: cuts([&[10], &[5, 5], &[3, 2, 2, 3]]),
    }
}

/// `count` square layers with ReLU.
fn dense(count: u64, width: i64) -> Sequential {
    (0..count).fold(Sequential::new(), |model, number| {
        let first = 1 + number * Dense::PARAMETERS;
        let layer = numbered(first, move |own| Dense::new(own, width, width, true));
        model.layer(format!("dense.{number}"), layer)
    })
}

/// W2: a deep perceptron of 1024 features.
fn perceptron() -> Workload {
    let (count, width, classes, batch) = (16, 1024, 10, 256);
    let last = numbered(1 + count * Dense::PARAMETERS, move |own| {
        Dense::new(own, width, classes, false)
    });
    Workload {
        model: dense(count, width).layer("last", last),
        input: symmetric(INPUT, &[batch, width], 1.0),
        target: integers(TARGET, &[batch], classes.unsigned_abs()),
        loss: cross_entropy,
        update: adamw(),
        cuts: cuts([&[17], &[8, 9], &[4, 4, 4, 5]]),
    }
}

/// W3: layers so small that the engine's overhead dominates.
fn tiny() -> Workload {
    let (width, batch) = (32, 64);
    Workload {
        model: dense(16, width),
        input: symmetric(INPUT, &[batch, width], 1.0),
        target: symmetric(TARGET, &[batch, width], 1.0),
        loss: mean_square,
        update: sgd(0.01),
        cuts: cuts([&[16], &[8, 8], &[4, 4, 4, 4]]),
    }
}

/// W4: ResNet-101 on small images.
fn resnet101() -> Workload {
    let (classes, batch) = (1000, 16);
    let mut model = Sequential::new().layer("stem", numbered(1, Stem::new));
    let (mut next, mut from) = (1 + Stem::PARAMETERS, 64);
    for (group, (planes, blocks)) in [(64, 3), (128, 4), (256, 23), (512, 3)]
        .into_iter()
        .enumerate()
    {
        for number in 0..blocks {
            let (first, own_from, down) = (next, from, number == 0);
            let stride = if group > 0 && down { 2 } else { 1 };
            let block = numbered(first, move |own| {
                Bottleneck::new(own, own_from, planes, stride, down)
            });
            model = model.layer(format!("group{group}.{number}"), block);
            next += Bottleneck::parameters(down);
            from = 4 * planes;
        }
    }
    let end = numbered(next, move |own| Classes::new(own, from, classes));
    Workload {
        model: model.layer("classes", end),
        input: symmetric(INPUT, &[batch, 3, 64, 64], 1.0),
        target: integers(TARGET, &[batch], classes.unsigned_abs()),
        loss: cross_entropy,
        update: sgd(0.001),
        cuts: cuts([&[35], &[17, 18], &[8, 9, 9, 9]]),
    }
}
