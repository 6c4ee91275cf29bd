//! A hundred steps leak no memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{Optimizer, Pipeline, memory, optim::AdamW, settings::Recompute};

use crate::alone;
use crate::support::{cpus, cross_entropy, models};

/// Bytes of all live tensors after ten steps and after a hundred.
fn levels(model: &models::Model, schedule: ScheduleKind, recompute: Recompute) -> [u64; 2] {
    let (x, y) = (model.batch)(8);
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .micro_batches(4)
        .schedule(schedule)
        .recompute(recompute)
        .threads_per_stage(1)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut level = 0;
    for step in 0..100 {
        drop(pipe.train_step(&x, &y, model.loss).unwrap());
        optimizer.step(&mut pipe).unwrap();
        if step % 10 == 9 {
            // The stages' state of the old optimizer is dropped with it.
            optimizer = Optimizer::new(AdamW::default());
        }
        if step == 9 {
            level = memory::live().unwrap();
        }
    }
    [level, memory::live().unwrap()]
}

#[test]
fn a_hundred_steps_leave_nothing_behind() {
    let _alone = alone();
    let nothing = memory::live().unwrap();
    for model in [
        models::mlp(),
        models::convnet(),
        models::recurrent(),
        models::unet(),
        models::multi_output(),
        models::tied(),
    ] {
        for (schedule, recompute) in [
            (ScheduleKind::OneFOneB, Recompute::Never),
            (ScheduleKind::ZbH1, Recompute::Never),
            (ScheduleKind::Zbv, Recompute::Always),
        ] {
            let [early, late] = levels(&model, schedule, recompute);
            assert!(early > nothing);
            assert_eq!(late, early, "{} under {schedule}", model.name);
        }
        assert_eq!(memory::live().unwrap(), nothing, "{}", model.name);
    }
}

/// Leaf sums are kept outside of the parameters.
#[test]
fn a_step_that_fails_amid_a_tree_of_sums_leaves_nothing_behind() {
    let _alone = alone();
    let model = models::mlp();
    let (x, y) = (model.batch)(8);
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .micro_batches(8)
        .tree(4)
        .threads_per_stage(1)
        .build()
        .unwrap();
    drop(pipe.train_step(&x, &y, model.loss).unwrap());
    pipe.zero_grad().unwrap();
    let level = memory::live().unwrap();
    for at in 0..8 {
        let calls = AtomicUsize::new(0);
        let failing = move |out: &Tensor, y: &Tensor| {
            anyhow::ensure!(calls.fetch_add(1, Ordering::Relaxed) != at, "as asked");
            Ok(cross_entropy(out, y))
        };
        assert!(pipe.train_step(&x, &y, failing).is_err());
        assert_eq!(memory::live().unwrap(), level, "fails at {at}");
    }
}
