//! An optimizer that fails on one stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpipe::tch::Tensor;
use gpipe::{
    Optimizer, Pipeline, Sequential,
    optim::{AdamW, OptimizerKind, Sgd},
};

use crate::support::everywhere::{plain_linear, with_linear};
use crate::support::*;

/// The second layer looks up rows, with sparse gradients on request.
fn looking_up(sparse: &Arc<AtomicBool>) -> Sequential {
    let sparse = Arc::clone(sparse);
    let model = plain_linear(Sequential::new(), "one");
    let model = with_linear(model, "two", move |x, linear, _| {
        let sparse = sparse.load(Ordering::SeqCst);
        let rows = x.argmax(-1, false);
        Ok(&x + Tensor::embedding(&linear.ws, &rows, -1, false, sparse))
    });
    plain_linear(model, "three")
}

struct Run {
    pipe: Pipeline,
    optimizer: Optimizer,
    sparse: Arc<AtomicBool>,
}

impl Run {
    fn new(kind: OptimizerKind, offload: bool) -> Self {
        let sparse = Arc::new(AtomicBool::new(false));
        let builder = Pipeline::builder(looking_up(&sparse)).devices(&cpus(3));
        let builder = builder.micro_batches(2).threads_per_stage(1).seed(3);
        Self {
            pipe: builder.build().unwrap(),
            optimizer: Optimizer::new(kind).offload(offload),
            sparse,
        }
    }

    fn train(&mut self, sparse: bool) -> Result<(), gpipe::Error> {
        self.sparse.store(sparse, Ordering::SeqCst);
        let (x, y) = batch(&[8, 8], 8);
        self.pipe.train_step(&x, &y, cross_entropy).unwrap();
        self.optimizer.step(&mut self.pipe)
    }
}

/// Regression test: the other stages already had their new weights.
#[test]
fn an_update_that_one_stage_cannot_make_is_made_by_none() {
    let momentum = Sgd {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.5,
        ..Sgd::default()
    };
    for kind in [AdamW::default().into(), momentum.into()] {
        for (offload, before) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
            let case = format!("{kind:?}, offload {offload}, {before} steps before");
            let (mut hit, mut calm) = (Run::new(kind, offload), Run::new(kind, offload));
            for _ in 0..before {
                hit.train(false).unwrap();
                calm.train(false).unwrap();
            }
            let error = hit.train(true).unwrap_err().to_string();
            for part in ["stage 1", "`two.weight` is sparse"] {
                assert!(error.contains(part), "no `{part}` in: {error}");
            }
            let (own, expected) = (snapshot(&mut hit.pipe), snapshot(&mut calm.pipe));
            assert_same_bits(&own, &expected, &case);
            assert!(!gradients(&mut hit.pipe).is_empty(), "{case}: still there");
            hit.pipe.zero_grad().unwrap();
            for _ in 0..2 {
                hit.train(false).unwrap();
                calm.train(false).unwrap();
            }
            let (own, expected) = (snapshot(&mut hit.pipe), snapshot(&mut calm.pipe));
            assert_same_bits(&own, &expected, &format!("{case}: later"));
        }
    }
}
