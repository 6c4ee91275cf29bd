//! Trainings for the injected failures.

use gpipe::partitioner::Bytes;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, PipelineBuilder, Sequential, error::NonFinite, optim::AdamW, settings::Recompute,
};

use crate::support::cross_entropy;
use crate::support::models::{self, Model};

/// A model and its inputs.
pub(super) struct Subject {
    pub(super) model: Box<dyn Fn() -> Sequential>,
    pub(super) x: Tensor,
    pub(super) y: Tensor,
    pub(super) loss: fn(&Tensor, &Tensor) -> Tensor,
}

/// A training configuration.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) subject: fn() -> Subject,
    pub(super) configure: fn(PipelineBuilder) -> PipelineBuilder,
    pub(super) optimizer: fn() -> Optimizer,
    /// Every `stride`th operation fails.
    pub(super) stride: u64,
}

pub(super) const PLAIN: Case = Case {
    name: "plain",
    subject: small,
    configure: |builder| builder,
    optimizer: adamw,
    stride: 1,
};
pub(super) const RECOMPUTE: Case = Case {
    name: "recompute",
    configure: |builder| builder.recompute(Recompute::Always),
    ..PLAIN
};
pub(super) const OFFLOAD: Case = Case {
    name: "offload",
    configure: offload,
    optimizer: offloaded,
    ..PLAIN
};
pub(super) const GRAPHS: Case = Case {
    name: "graphs",
    configure: |builder| builder.cuda_graphs(true),
    ..PLAIN
};
/// With dropout, which a retry draws again.
pub(super) const TRANSFORMER: Case = Case {
    name: "transformer",
    subject: || of(&models::transformer(0.1)),
    configure: |builder| offload(builder).recompute(Recompute::Always),
    optimizer: offloaded,
    stride: 41,
};
/// All skip connections lead to the other stage.
pub(super) const SKIPS: Case = Case {
    name: "skips",
    subject: || of(&models::unet()),
    stride: 23,
    ..PLAIN
};
/// Buffers of batch norms. The host does not know whether a step counts.
pub(super) const BUFFERS: Case = Case {
    name: "buffers",
    subject: || of(&models::convnet()),
    configure: |builder| builder.on_non_finite(NonFinite::Skip),
    stride: 17,
    ..PLAIN
};
pub(super) const TIED: Case = Case {
    name: "tied",
    subject: || of(&models::tied()),
    optimizer: offloaded,
    stride: 7,
    ..PLAIN
};

fn offload(builder: PipelineBuilder) -> PipelineBuilder {
    builder.offload(&[0, 1]).offload_at_least(Bytes(1))
}

fn adamw() -> Optimizer {
    Optimizer::new(AdamW::default())
}

/// Each parameter has a window of its own.
fn offloaded() -> Optimizer {
    adamw().offload(true).offload_window(Bytes(1))
}

fn small() -> Subject {
    let linear = |out| move |p: &nn::Path<'_>| nn::linear(p, 8, out, nn::LinearConfig::default());
    let model = move || {
        Sequential::new()
            .layer("one", linear(8))
            .layer("act", |_| nn::func(|x: &Tensor| x.gelu("none")))
            .layer("two", linear(5))
    };
    Subject {
        model: Box::new(model),
        x: Tensor::arange(32, (Kind::Float, Device::Cpu)).view([4, 8]) / 32.0,
        y: Tensor::arange(4, (Kind::Int64, Device::Cpu)),
        loss: cross_entropy,
    }
}

fn of(model: &Model) -> Subject {
    let own = model.clone();
    let (x, y) = (model.batch)(4);
    Subject {
        model: Box::new(move || own.sequential()),
        x,
        y,
        loss: model.loss,
    }
}
