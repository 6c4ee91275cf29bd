//! Pipelines whose device operations are recorded.

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::Tensor;
use gpipe::torch::streams::Recorder;
use gpipe::{Optimizer, Pipeline, PipelineBuilder, optim::AdamW, settings::Recompute};

use crate::support::models::Model;
use crate::support::{cpus, single_threaded, snapshot};

/// Settings of a recorded pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) schedule: ScheduleKind,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
    /// The accelerator of each device; `None` for the host.
    pub(crate) places: Vec<Option<usize>>,
}

impl Setup {
    /// Whether the schedule exists for this shape, and the model has enough layers.
    pub(crate) fn exists(&self, layers: usize) -> bool {
        let shape = Shape {
            devices: self.places.len(),
            chunks: self.chunks,
            micro_batches: self.micro_batches,
        };
        let inference = self.schedule == ScheduleKind::ForwardOnly;
        !inference && shape.stages() <= layers && self.schedule.generate(shape).is_ok()
    }

    pub(crate) fn pipeline(&self, model: &Model, recorder: Option<&Recorder>) -> Pipeline {
        self.builder(model, recorder).build().unwrap()
    }

    pub(crate) fn builder(&self, model: &Model, recorder: Option<&Recorder>) -> PipelineBuilder {
        let builder = Pipeline::builder(model.sequential())
            .devices(&cpus(self.places.len()))
            .schedule(self.schedule)
            .chunks(self.chunks)
            .micro_batches(self.micro_batches)
            .recompute(self.recompute.clone())
            .threads_per_stage(1)
            .seed(5);
        match recorder {
            Some(recorder) => builder.record_streams(recorder),
            None => builder,
        }
    }

    /// Two training steps with their updates, and their recording.
    pub(crate) fn recorded(&self, model: &Model) -> (Recorder, Numbers) {
        let recorder = Recorder::new(&self.places);
        let numbers = train(&mut self.pipeline(model, Some(&recorder)), model);
        (recorder, numbers)
    }
}

/// Results of a training.
pub(crate) type Numbers = (Vec<f64>, Vec<(String, Tensor)>);

pub(crate) fn train(pipe: &mut Pipeline, model: &Model) -> Numbers {
    single_threaded();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    let mut losses = Vec::new();
    for _ in 0..2 {
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        losses.push(report.read().unwrap().loss);
        losses.push(pipe.clip_grad_norm(1.0).unwrap());
        optimizer.step(pipe).unwrap();
    }
    let _ = pipe.forward(&x).unwrap();
    (losses, snapshot(pipe))
}
