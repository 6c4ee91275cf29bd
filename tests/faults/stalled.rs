//! A layer, or a loss function, that does not return.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpipe::engine::EngineError;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::{Error, Layer, Pipeline, Sequential, Values, layers::Context, settings::Recompute};

use crate::support::*;

/// Longer than anything takes that is not blocked, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits for a signal before one of the micro-batches, if there is a receiver.
#[derive(Debug)]
struct Waits {
    linear: nn::Linear,
    word: Arc<Mutex<Option<Receiver<()>>>>,
}

impl Waits {
    fn wait(word: &Mutex<Option<Receiver<()>>>) {
        let word = word.lock().unwrap().take();
        if let Some(word) = word {
            // A dropped sender also counts as a signal.
            let _ = word.recv();
        }
    }
}

impl Layer for Waits {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        if ctx.micro().index() == 2 {
            Self::wait(&self.word);
        }
        Ok(inputs.into_one()?.apply(&self.linear).into())
    }
}

type Word = Arc<Mutex<Option<Receiver<()>>>>;

fn pipeline(word: &Word, schedule: ScheduleKind, recompute: &Recompute) -> Pipeline {
    let word = Arc::clone(word);
    let linear = |p: &nn::Path, inputs| nn::linear(p, inputs, 8, nn::LinearConfig::default());
    let model = Sequential::new()
        .layer("first", move |p| linear(p, 12))
        .layer("waits", move |p| Waits {
            linear: linear(p, 8),
            word: Arc::clone(&word),
        })
        .layer("last", move |p| linear(p, 8));
    Pipeline::builder(model)
        .devices(&cpus(3))
        .micro_batches(4)
        .schedule(schedule)
        .recompute(recompute.clone())
        .threads_per_stage(1)
        .patience(PATIENCE)
        .build()
        .unwrap()
}

fn arm(word: &Word) -> Sender<()> {
    let (sender, receiver) = channel();
    *word.lock().unwrap() = Some(receiver);
    sender
}

/// Regression test: a layer that blocks (a lock taken twice, a pipe without a writer) made the step wait
/// forever, without naming the layer.
#[test]
fn a_layer_that_blocks_is_named_and_the_pipeline_goes_on_when_it_is_back() {
    watched(|| {
        for (schedule, recompute) in [
            (ScheduleKind::OneFOneB, Recompute::Never),
            (ScheduleKind::ZbH1, Recompute::Always),
        ] {
            let word = Word::default();
            let mut pipe = pipeline(&word, schedule, &recompute);
            let mut calm = pipeline(&Word::default(), schedule, &recompute);
            let (x, y) = mlp_batch(13);
            let step = |pipe: &mut Pipeline| pipe.train_step(&x, &y, cross_entropy);
            step(&mut pipe).unwrap();
            step(&mut calm).unwrap();
            let word = arm(&word);
            let error = step(&mut pipe).unwrap_err();
            let text = error.to_string();
            let place = "device 1, stage 1, layer `waits`, micro-batch 2, forward: ";
            assert!(text.starts_with(place), "{text}");
            assert!(matches!(error, Error::Engine(EngineError::Stalled(_))));
            drop(word);
            assert_eq!(
                step(&mut pipe).unwrap().read().unwrap().loss.to_bits(),
                step(&mut calm).unwrap().read().unwrap().loss.to_bits()
            );
            assert_same_bits(&snapshot(&mut pipe), &snapshot(&mut calm), "after a stall");
        }
    });
}

#[test]
fn a_loss_function_that_blocks_is_named_and_the_pipeline_can_be_dropped_meanwhile() {
    watched(|| {
        let mut pipe = pipeline(&Word::default(), ScheduleKind::GPipe, &Recompute::Never);
        let (x, y) = mlp_batch(13);
        let word = Word::default();
        let sender = arm(&word);
        let loss = move |out: &Tensor, y: &Tensor| {
            Waits::wait(&word);
            cross_entropy(out, y)
        };
        let error = pipe.train_step(&x, &y, loss).unwrap_err().to_string();
        let place = "device 2, stage 2, layer `loss`, micro-batch 0, forward: ";
        assert!(error.starts_with(place), "{error}");
        drop(pipe);
        drop(sender);
    });
}

#[test]
fn a_patience_of_nothing_is_refused() {
    let model = Sequential::new().layer("first", |p| {
        nn::linear(p, 2, 2, nn::LinearConfig::default())
    });
    let refused = Pipeline::builder(model).patience(Duration::ZERO).build();
    let error = refused.unwrap_err();
    assert!(error.is_wrong_use(), "{error}");
    assert!(error.to_string().contains("patience of 0"), "{error}");
}
