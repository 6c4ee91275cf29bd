//! Two pipelines that differ only in graphs.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::torch::streams::Recorder;
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder, Sequential, optim::AdamW, report::GraphUse,
    settings::LossFn,
};

use crate::support::{assert_same_bits, cpus, snapshot};

/// Steps before the first capture.
pub(crate) const WARM_UP: usize = 3;

/// Stages on separate stand-in accelerators, with a recorder for graphs.
pub(crate) struct Setup {
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
    pub(crate) schedule: ScheduleKind,
}

impl Setup {
    pub(crate) fn builder(&self, model: Sequential) -> PipelineBuilder {
        Pipeline::builder(model)
            .devices(&cpus(self.stages))
            .schedule(self.schedule)
            .micro_batches(self.micro_batches)
            .threads_per_stage(1)
            .seed(5)
    }

    pub(crate) fn recorder(&self) -> Recorder {
        let places: Vec<_> = (0..self.stages).map(Some).collect();
        Recorder::new(&places)
    }
}

/// One pipeline without graphs, and one with.
pub(crate) struct Pair {
    pub(crate) plain: Run,
    pub(crate) graphs: Run,
    pub(crate) recorder: Recorder,
}

pub(crate) struct Run {
    pub(crate) pipe: Pipeline,
    optimizer: Optimizer,
}

impl Run {
    pub(crate) fn new(builder: PipelineBuilder) -> Self {
        Self {
            pipe: builder.build().unwrap(),
            optimizer: Optimizer::new(AdamW::default()),
        }
    }

    /// A step with its update; returns the loss and the norm of the gradients.
    pub(crate) fn step(
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

impl Pair {
    /// `build` gets the model's builder for further settings.
    pub(crate) fn new(setup: &Setup, build: impl Fn() -> PipelineBuilder) -> Self {
        Self::recorded(setup.recorder(), build)
    }

    pub(crate) fn recorded(recorder: Recorder, build: impl Fn() -> PipelineBuilder) -> Self {
        Self {
            plain: Run::new(build()),
            graphs: Run::new(build().record_streams(&recorder).cuda_graphs(true)),
            recorder,
        }
    }

    /// Runs a step on both, and compares the results.
    pub(crate) fn step<L: LossFn>(
        &mut self,
        batch: &(Tensor, Tensor),
        loss: impl Fn() -> L,
        case: &str,
    ) {
        let plain = self.plain.step(batch, loss()).unwrap();
        let graphs = self.graphs.step(batch, loss()).unwrap();
        assert_eq!(plain, graphs, "{case}");
    }

    /// Checks for equal parameters and buffers, and for ordered streams; returns the uses of graphs.
    pub(crate) fn finish(&mut self, case: &str) -> Vec<GraphUse> {
        let plain = snapshot(&mut self.plain.pipe);
        assert_same_bits(&plain, &snapshot(&mut self.graphs.pipe), case);
        self.recorder.check().unwrap();
        self.uses()
    }

    pub(crate) fn uses(&mut self) -> Vec<GraphUse> {
        self.graphs.pipe.cuda_graphs().unwrap()
    }
}
