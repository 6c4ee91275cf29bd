//! Two pipelines that differ only in graphs.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Tensor};
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder, Sequential, optim::AdamW, report::GraphUse,
    settings::LossFn,
};

use crate::support::{assert_same_bits, snapshot};

/// Steps before the first capture.
pub(super) const WARM_UP: usize = 3;

/// Two stages on one GPU.
pub(super) fn builder(model: Sequential, schedule: ScheduleKind) -> PipelineBuilder {
    Pipeline::builder(model)
        .devices(&[Device::Cuda(0); 2])
        .schedule(schedule)
        .micro_batches(4)
        .deterministic(true)
        .seed(5)
}

pub(super) struct Run {
    pub(super) pipe: Pipeline,
    optimizer: Optimizer,
}

impl Run {
    fn new(builder: PipelineBuilder) -> Self {
        Self {
            pipe: builder.build().unwrap(),
            optimizer: Optimizer::new(AdamW::default()),
        }
    }

    /// A step with its update; returns the loss and the norm of the gradients.
    pub(super) fn step(
        &mut self,
        (x, y): &(Tensor, Tensor),
        loss: impl LossFn,
    ) -> Result<(u64, u64), gpipe::Error> {
        let report = self.pipe.train_step(x, y, loss)?;
        let norm = self.pipe.clip_grad_norm(1.0)?;
        self.optimizer.step(&mut self.pipe)?;
        Ok((report.read().unwrap().loss.to_bits(), norm.to_bits()))
    }
}

/// One pipeline without graphs, and one with.
pub(super) struct Pair {
    pub(super) plain: Run,
    pub(super) graphs: Run,
}

impl Pair {
    pub(super) fn new(build: impl Fn() -> PipelineBuilder) -> Self {
        Self {
            plain: Run::new(build()),
            graphs: Run::new(build().cuda_graphs(true)),
        }
    }

    /// Runs a step on both, and compares the results.
    pub(super) fn step<L: LossFn>(
        &mut self,
        batch: &(Tensor, Tensor),
        loss: impl Fn() -> L,
        case: &str,
    ) {
        let plain = self.plain.step(batch, loss()).unwrap();
        let graphs = self.graphs.step(batch, loss()).unwrap();
        assert_eq!(plain, graphs, "{case}");
    }

    /// The graphs' use; both have the same parameters and buffers.
    pub(super) fn finish(&mut self, case: &str) -> Vec<GraphUse> {
        let plain = snapshot(&mut self.plain.pipe);
        assert_same_bits(&plain, &snapshot(&mut self.graphs.pipe), case);
        self.uses()
    }

    pub(super) fn uses(&mut self) -> Vec<GraphUse> {
        self.graphs.pipe.cuda_graphs().unwrap()
    }
}
