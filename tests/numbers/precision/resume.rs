//! An interrupted run in half precision resumes exactly.

use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{
    Optimizer, Pipeline,
    optim::{Adam, LrSchedule},
    settings::{LossScale, Precision},
};

use super::builder;
use crate::support::*;

const STEPS: u64 = 9;

struct Run {
    pipe: Pipeline,
    optimizer: Optimizer,
}

impl Run {
    fn new(stages: usize, schedule: ScheduleKind) -> Self {
        let settings = LossScale {
            initial: 128.0,
            growth_interval: 3,
        };
        let builder = builder(stages, Precision::Fp16).loss_scale(settings);
        Self {
            pipe: builder.schedule(schedule).build().unwrap(),
            optimizer: Optimizer::new(Adam::default()),
        }
    }

    /// Steps from `first` on, the fifth of which overflows; returns loss, scale and skips.
    fn go(&mut self, first: u64, last: u64) -> Vec<(u64, Option<f64>, bool)> {
        let (x, y) = mlp_batch(8);
        let rates = LrSchedule::cosine(0.02, STEPS).unwrap().warm_up(2).unwrap();
        let mut step = |number: u64| {
            let factor = if number == 5 { 1e9 } else { 1.0 };
            let loss = move |out: &Tensor, y: &Tensor| cross_entropy(out, y) * factor;
            let report = self.pipe.train_step(&x, &y, loss).unwrap();
            self.optimizer.set_lr(rates.at(number));
            self.optimizer.step(&mut self.pipe).unwrap();
            (
                report.read().unwrap().loss.to_bits(),
                report.read().unwrap().loss_scale,
                report.read().unwrap().skipped(),
            )
        };
        (first..=last).map(&mut step).collect()
    }
}

#[test]
fn at_any_step_over_any_cut() {
    let mut whole = Run::new(2, ScheduleKind::OneFOneB);
    let expected = whole.go(1, STEPS);
    let scales: Vec<f64> = expected.iter().filter_map(|step| step.1).collect();
    assert_eq!(scales[3..7], [256.0, 256.0, 128.0, 128.0]);
    for (at, stages) in [(2, 1), (4, 3), (5, 2), (8, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let mut before = Run::new(2, ScheduleKind::GPipe);
        let mut got = before.go(1, at);
        let state = before.pipe.loss_scale_state().unwrap();
        let extras = Extras::new(at).part("loss_scale", state);
        let mut saving = Checkpointer::new(folder.path()).unwrap();
        saving
            .save(&mut before.pipe, &before.optimizer, extras)
            .unwrap();
        saving.finish().unwrap();

        let mut after = Run::new(stages, ScheduleKind::ZbH1);
        let saved = Checkpoint::newest(folder.path()).unwrap();
        saved
            .restore(&mut after.pipe, &mut after.optimizer)
            .unwrap();
        let state = saved.extras().get("loss_scale").unwrap();
        after.pipe.restore_loss_scale(state).unwrap();
        got.extend(after.go(at + 1, STEPS));
        assert_eq!(got, expected, "at {at}");
        let own = snapshot(&mut after.pipe);
        assert_same_bits(&own, &snapshot(&mut whole.pipe), "weights");
    }
}
