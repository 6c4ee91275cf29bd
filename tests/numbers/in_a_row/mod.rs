//! Steps in a row without a barrier have the bits, errors, skipped steps and reports of steps with barriers.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpipe::engine::EngineError;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::{
    Error, Layer, Optimizer, Pipeline, Sequential, Values,
    error::{NonFinite, Setting},
    layers::Context,
    optim::AdamW,
    report::{StepInARow, StepsInARow},
    settings::Precision,
};
use proptest::prelude::*;

use crate::support::*;
use model::{Came, Case, FAULTS, Fault, LAYERS};

/// Compares steps in a row, and the state after them, with steps with barriers.
fn check(case: &Case) -> Option<Came> {
    let (Ok(mut row), Ok(mut oracle)) = (case.pipe(), case.pipe()) else {
        return None;
    };
    let (mut own, mut other) = (case.optimizer(), case.optimizer());
    let came = case.in_a_row(&mut row, &mut own);
    let expected = case.with_barriers(&mut oracle, &mut other);
    assert_eq!(came.told, expected.told, "{case:?}");
    // A schedule computed for several steps may differ from that for one, with the halves of backwards
    // elsewhere.
    let halves = |error: &Option<String>| match case.kind {
        ScheduleKind::Auto => {
            (error.as_ref()).map(|error| error.replace("backward of the input", "backward"))
        }
        _ => error.clone(),
    };
    assert_eq!(halves(&came.error), halves(&expected.error), "{case:?}");
    assert_eq!(own.lr().to_bits(), other.lr().to_bits());
    assert_eq!(
        (row.steps(), row.loss_scale_state()),
        (oracle.steps(), oracle.loss_scale_state())
    );
    assert_same_bits(
        &snapshot(&mut row),
        &snapshot(&mut oracle),
        "after the steps",
    );
    assert!(gradients(&mut row).len() == gradients(&mut oracle).len());
    // Later steps depend on the optimizers' state.
    let more = Case {
        batches: vec![(12, None); 3],
        first: 2,
        max_norm: Some(f64::INFINITY),
        ..case.clone()
    };
    let next = more.in_a_row(&mut row, &mut own);
    let expected = more.with_barriers(&mut oracle, &mut other);
    assert_eq!(
        (next.told, next.error),
        (expected.told, expected.error),
        "{case:?}"
    );
    assert_same_bits(&snapshot(&mut row), &snapshot(&mut oracle), "after more");
    Some(came)
}

fn plain() -> Case {
    Case {
        kind: ScheduleKind::ZbH2,
        devices: 3,
        chunks: 1,
        micro_batches: 5,
        precision: Precision::F32,
        scale: 6,
        non_finite: NonFinite::Allow,
        max_norm: None,
        momentum: false,
        rates: false,
        batches: vec![(11, None); 8],
        first: 4,
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds: Vec<_> = ScheduleKind::ALL
        .into_iter()
        .filter(|kind| kind.trains())
        .collect();
    let shape = (
        prop::sample::select(kinds),
        1..=3_usize,
        1..=2_usize,
        2..=5_usize,
    );
    let precision = prop::sample::select(vec![Precision::F32, Precision::F32, Precision::Fp16]);
    let checks = prop::sample::select(vec![NonFinite::Allow, NonFinite::Skip, NonFinite::Fail]);
    let limits = vec![
        None,
        Some(f64::INFINITY),
        Some(100.0),
        Some(0.3),
        Some(0.05),
    ];
    let fault = (1..=LAYERS, prop::sample::select(FAULTS.to_vec()));
    let samples = prop::sample::select(vec![12_i64, 12, 12, 11, 2]);
    // A norm refuses micro-batches of one sample. A second failure in such a step would race with it:
    // a step's error is the first to reach the caller.
    let batch = (samples, prop::option::weighted(0.15, fault))
        .prop_map(|(samples, fault)| (samples, fault.filter(|_| samples > 2)));
    let batches = prop::collection::vec(batch, 2..=9);
    let flags = any::<(bool, bool)>();
    let precision = (precision, prop::sample::select(vec![6, 18]));
    let limits = prop::sample::select(limits);
    (
        shape,
        precision,
        checks,
        limits,
        flags,
        batches,
        1..=8_usize,
    )
        .prop_map(
            |(
                shape,
                (precision, scale),
                non_finite,
                max_norm,
                (momentum, rates),
                batches,
                first,
            )| {
                let (kind, devices, chunks, micro_batches) = shape;
                Case {
                    kind,
                    devices,
                    chunks,
                    micro_batches,
                    precision,
                    scale,
                    non_finite,
                    max_norm,
                    momentum,
                    rates,
                    first: first.min(batches.len()),
                    batches,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Effective clipping, NaN, half-precision overflow and failing layers, at any step.
    #[test]
    fn they_come_to_what_steps_with_barriers_come_to(case in cases()) {
        check(&case);
    }
}

#[test]
fn every_schedule_goes_without_barriers_behind_the_first_step() {
    for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
        let case = Case {
            kind,
            chunks: kind.default_chunks(),
            devices: 2,
            micro_batches: 4,
            batches: vec![(9, None); 6],
            max_norm: Some(f64::INFINITY),
            non_finite: NonFinite::Skip,
            ..plain()
        };
        let came = check(&case).unwrap();
        // The first shows the layers' outputs; a single step is not worth a row.
        assert_eq!(
            came.barriers,
            [true, false, false, false, false, false],
            "{kind}"
        );
    }
}

/// The step is repeated with a barrier, and the steps after it have none.
#[test]
fn a_step_that_does_not_count_has_a_barrier() {
    let mut case = Case {
        batches: vec![(11, None); 12],
        first: 12,
        non_finite: NonFinite::Skip,
        max_norm: Some(f64::INFINITY),
        ..plain()
    };
    case.batches[5].1 = Some((1, Fault::Nan));
    let came = check(&case).unwrap();
    assert!(came.barriers[5] && came.error.is_none(), "{came:?}");
    assert!(came.barriers[8..].contains(&false), "{:?}", came.barriers);
}

#[test]
fn clipping_that_always_bites_costs_few_attempts() {
    let case = Case {
        batches: vec![(11, None); 40],
        first: 40,
        max_norm: Some(1e-3),
        ..plain()
    };
    let came = check(&case).unwrap();
    assert!(came.barriers.iter().all(|barrier| *barrier));
}

#[test]
fn a_layer_that_fails_leaves_the_steps_before_it() {
    for fault in [Fault::Error, Fault::Panic, Fault::Backward] {
        let mut case = Case {
            batches: vec![(11, None); 7],
            first: 7,
            ..plain()
        };
        case.batches[4].1 = Some((2, fault));
        let came = check(&case).unwrap();
        assert_eq!(came.told.len(), 4);
        assert!(came.error.unwrap().contains("layer `marked2`"));
    }
}

fn chain() -> Sequential {
    sequential(&mlp())
}

fn adamw() -> Optimizer {
    Optimizer::new(AdamW::default())
}

/// Steps on a batch for [`mlp`]: whether each had a barrier.
fn barriers(pipe: &mut Pipeline, optimizer: &mut Optimizer, steps: usize) -> Vec<bool> {
    let mut all = Vec::new();
    let batches = (0..steps).map(|_| mlp_batch(13));
    let given = StepsInARow::default();
    pipe.train_steps(
        optimizer,
        batches,
        cross_entropy,
        &given,
        |step: StepInARow| {
            all.push(step.barrier);
        },
    )
    .unwrap();
    all
}

fn builder(model: Sequential) -> gpipe::PipelineBuilder {
    let builder = Pipeline::builder(model).devices(&cpus(2)).micro_batches(4);
    builder.schedule(ScheduleKind::ZbH2).threads_per_stage(1)
}

/// One end of a skip.
#[derive(Debug)]
struct Skipping {
    pops: bool,
}

impl Layer for Skipping {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        if self.pops {
            let other = ctx.pop("x")?;
            return Ok((x + other.unwrap()).into());
        }
        ctx.stash("x", &x)?;
        Ok(x.into())
    }
}

/// Models that need barriers have them, with the reason where barriers are forbidden.
#[test]
fn what_always_has_barriers_says_why() {
    let replicas = builder(chain()).devices(&cpus(4)).replicas(2).tree(2);
    let tied = chain().tie("residual.inner.weight", "hidden.weight");
    let skips = Sequential::new()
        .layer("first", |p| {
            nn::linear(p, 12, 5, nn::LinearConfig::default())
        })
        .layer("from", |_| Skipping { pops: false })
        .stashes("x")
        .layer("to", |_| Skipping { pops: true })
        .pops("x");
    let pipes = [
        (
            builder(skips).balance(&[2, 1]),
            adamw(),
            "a skip goes from one stage to another",
        ),
        (replicas, adamw(), "it has replicas"),
        (builder(tied), adamw(), "weights are tied"),
        (
            builder(chain()).measure_memory(true),
            adamw(),
            "its memory is measured",
        ),
        (
            builder(chain()),
            adamw().offload(true),
            "optimizer states are offloaded",
        ),
    ];
    for (builder, mut optimizer, why) in pipes {
        let mut pipe = builder.build().unwrap();
        assert_eq!(barriers(&mut pipe, &mut optimizer, 4), [true; 4]);
        let steps = StepsInARow::default().required(true);
        let batches = [mlp_batch(13)];
        let refused = pipe.train_steps(&mut optimizer, batches, cross_entropy, &steps, |_| {});
        let Error::Settings(error) = refused.unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(error.setting, Setting::StepsInARow);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!((pipe.steps(), pipe.kept_for_rows()), (4, 0));
    }
}

/// Another stage may need the parameter when its own stage updates it.
#[test]
fn a_model_that_gives_out_a_parameter_has_barriers() {
    let model = Sequential::new()
        .layer("start", |p| {
            let start = p.randn_standard("start", &[1, 16]);
            nn::func(move |x| start.expand([x.size()[0], 16], false))
        })
        .layer("head", |p| {
            nn::linear(p, 16, 5, nn::LinearConfig::default())
        });
    let mut pipe = builder(model).build().unwrap();
    assert_eq!(barriers(&mut pipe, &mut adamw(), 4), [true; 4]);
}

#[test]
fn gradients_that_were_there_before_are_part_of_the_first_step() {
    let run = |row: bool| {
        let mut pipe = builder(chain()).build().unwrap();
        let mut optimizer = adamw();
        assert_eq!(barriers(&mut pipe, &mut optimizer, 1), [true]);
        let (x, y) = mlp_batch(13);
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        if row {
            assert_eq!(
                barriers(&mut pipe, &mut optimizer, 4),
                [true, false, false, false]
            );
            assert!(pipe.kept_for_rows() > 0);
        } else {
            for _ in 0..4 {
                pipe.train_step(&x, &y, cross_entropy).unwrap();
                optimizer.step(&mut pipe).unwrap();
            }
        }
        snapshot(&mut pipe)
    };
    assert_same_bits(&run(true), &run(false), "accumulated before");
}

/// With AdamW it keeps three copies of each parameter: the parameter and the two moments.
#[test]
fn what_is_kept_is_counted() {
    let mut pipe = builder(chain()).build().unwrap();
    barriers(&mut pipe, &mut adamw(), 3);
    let all = pipe.parameters().unwrap();
    let bytes: usize = all.iter().map(|(_, own)| own.numel() * 4).sum();
    assert_eq!(pipe.kept_for_rows(), 3 * bytes as u64);
}

/// None of the steps in a row with it counts, and the next call finds the previous state.
#[test]
fn a_stage_that_does_not_come_back_is_waited_for_and_undone() {
    watched(|| {
        let blocks = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&blocks);
        let model = chain().layer("slow", move |_| {
            let told = Arc::clone(&told);
            nn::func(move |x: &Tensor| {
                while told.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                x * 1.0
            })
        });
        let patience = Duration::from_millis(300);
        let mut pipe = builder(model).patience(patience).build().unwrap();
        let mut optimizer = adamw();
        assert_eq!(barriers(&mut pipe, &mut optimizer, 3), [true, false, false]);
        let (before, steps) = (snapshot(&mut pipe), pipe.steps());
        blocks.store(true, Ordering::SeqCst);
        let batches = (0..3).map(|_| mlp_batch(13));
        let given = StepsInARow::default();
        let mut done = 0;
        let error = pipe.train_steps(&mut optimizer, batches, cross_entropy, &given, |_| {
            done += 1
        });
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::Engine(EngineError::Stalled(_))),
            "{error}"
        );
        assert_eq!(done, 0);
        blocks.store(false, Ordering::SeqCst);
        assert_same_bits(&snapshot(&mut pipe), &before, "undone");
        assert_eq!(pipe.steps(), steps);
        assert_eq!(barriers(&mut pipe, &mut optimizer, 3).len(), 3);
    });
}
