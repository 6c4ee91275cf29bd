//! The backward in two halves: the weight pass may run at any later time and in any order, on any model, with
//! the bits of the joint backward.

use crate::support::models::{self, Model};
use crate::support::reference::{Numbers, pipeline_numbers};
use crate::support::*;
use gpipe::partitioner::{Action, ActionKind, CheckedSchedule, Schedule, ScheduleKind};
use gpipe::tch::{self, Tensor, nn};
use gpipe::{
    Layer, Pipeline, PipelineBuilder, Sequential, Values, layers::Context, settings::Recompute,
};

const MICRO_BATCHES: usize = 4;
const UPDATES: usize = 3;

/// When the weight passes run.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// Each right after its input pass.
    AtOnce,
    /// All after the last input pass.
    AtTheEnd,
    /// All after the last input pass, the last micro-batch first.
    Reversed,
    /// One input pass later, with the micro-batches out of order.
    Shuffled,
}

const ORDERS: [Order; 4] = [
    Order::AtOnce,
    Order::AtTheEnd,
    Order::Reversed,
    Order::Shuffled,
];

/// All forwards, then input and weight passes in this order.
fn schedule(stages: usize, order: Order) -> CheckedSchedule {
    let list = |stage: usize| -> Vec<Action> {
        let all = |kind| (0..MICRO_BATCHES).map(move |micro| Action::new(stage, kind, micro));
        let (forwards, inputs) = (all(ActionKind::Forward), all(ActionKind::BackwardInput));
        let weights: Vec<Action> = all(ActionKind::BackwardWeight).collect();
        let pick = |micros: [usize; MICRO_BATCHES]| micros.map(|micro| weights[micro]).to_vec();
        let mut list: Vec<Action> = forwards.collect();
        match order {
            Order::AtOnce => list.extend(inputs.zip(weights).flat_map(|(i, w)| [i, w])),
            Order::AtTheEnd => list.extend(inputs.chain(weights)),
            Order::Reversed => list.extend(inputs.chain(pick([3, 2, 1, 0]))),
            Order::Shuffled => {
                let inputs: Vec<Action> = inputs.collect();
                let weights = pick([1, 0, 3, 2]);
                list.extend([inputs[0], inputs[1], weights[0], inputs[2], weights[1]]);
                list.extend([inputs[3], weights[2], weights[3]]);
            }
        }
        list
    };
    let lists = (0..stages).map(list).collect();
    let schedule = Schedule::new(format!("{order:?}"), stages, MICRO_BATCHES, lists);
    schedule.check().unwrap()
}

fn builder(model: &Model, stages: usize) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&cpus(stages))
        .micro_batches(MICRO_BATCHES)
        .threads_per_stage(1)
        .seed(5)
}

fn numbers(builder: PipelineBuilder, model: &Model) -> Numbers {
    let (x, y) = (model.batch)(10);
    pipeline_numbers(&mut builder.build().unwrap(), model, (&x, &y), UPDATES).unwrap()
}

fn every_order(model: &Model) {
    single_threaded();
    let joint = numbers(builder(model, 1).schedule(ScheduleKind::GPipe), model);
    for stages in [1, 2, 3] {
        for order in ORDERS {
            for recompute in [Recompute::Never, Recompute::Always] {
                let what = format!("{}, {stages} stages, {order:?}, {recompute}", model.name);
                let split = builder(model, stages)
                    .custom_schedule(schedule(stages, order))
                    .recompute(recompute);
                let split = numbers(split, model);
                assert_eq!(split.losses, joint.losses, "{what}");
                assert_same_bits(&split.gradients, &joint.gradients, &what);
                assert_same_bits(&split.after, &joint.after, &what);
                let inputs = [&split, &joint].map(|n| n.input_gradient.as_ref());
                match inputs {
                    [Some(split), Some(joint)] => assert!(split.equal(joint), "{what}: input"),
                    [None, None] => {}
                    _ => panic!("{what}: one has a gradient of the input"),
                }
            }
        }
    }
}

#[test]
fn perceptron() {
    every_order(&models::mlp());
}

#[test]
fn convolutions_with_batch_norm() {
    every_order(&models::convnet());
}

#[test]
fn transformer_with_dropout() {
    every_order(&models::transformer(0.1));
}

#[test]
fn long_skips() {
    every_order(&models::unet());
}

#[test]
fn the_same_linear_twice_recurrent_cells_and_unrolled_loops() {
    every_order(&models::recurrent());
}

#[test]
fn nodes_with_several_outputs_that_take_parameters() {
    every_order(&models::multi_output());
}

#[test]
fn tied_embedding_and_head() {
    every_order(&models::tied());
}

/// Uses a value computed from its weight three times, in depth.
#[derive(Debug)]
struct Doubling {
    weight: Tensor,
}

impl Layer for Doubling {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        let shared = (&self.weight * 2.0).tanh();
        let once = x.matmul(&shared);
        Ok(once.tanh().matmul(&shared).matmul(&shared.tr()).into())
    }
}

/// A computation from parameters alone that several places share runs backward once, with the sum of their
/// gradients, as in the joint backward.
#[test]
fn what_is_computed_from_a_weight_once_and_used_thrice() {
    single_threaded();
    let model = || {
        (0..3).fold(Sequential::new(), |model, number| {
            model.layer(format!("doubling{number}"), |p| Doubling {
                weight: p.kaiming_uniform("weight", &[12, 12]),
            })
        })
    };
    let model = || {
        model().layer("head", |p| {
            nn::linear(p, 12, 5, nn::LinearConfig::default())
        })
    };
    let step = |builder: PipelineBuilder| {
        let mut pipe = builder.threads_per_stage(1).build().unwrap();
        let (x, y) = mlp_batch(8);
        let loss = pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        (loss.to_bits(), gradients(&mut pipe))
    };
    let joint = step(Pipeline::builder(model()).micro_batches(MICRO_BATCHES));
    for stages in [1, 2] {
        for order in ORDERS {
            let split = Pipeline::builder(model())
                .devices(&cpus(stages))
                .custom_schedule(schedule(stages, order));
            let split = step(split);
            assert_eq!(split.0, joint.0);
            assert_same_bits(&split.1, &joint.1, &format!("{order:?}"));
        }
    }
}

/// Peak bytes that micro-batches hold on one stage, with these actions.
fn held(actions: &str) -> u64 {
    let model = Sequential::new()
        .layer("first", |p| linear(p, 64))
        .layer("deep", |_| {
            nn::func(|x| (0..6).fold(x.shallow_clone(), |x, _| (x * 1.5).gelu("none")))
        })
        .layer("last", |p| linear(p, 4));
    let list = actions.split(' ').map(|action| action.parse().unwrap());
    let schedule = Schedule::new("own", 1, 2, vec![list.collect()]);
    let mut pipe = Pipeline::builder(model)
        .custom_schedule(schedule.check().unwrap())
        .measure_memory(true)
        .build()
        .unwrap();
    let x = Tensor::ones([512, 64], tch::kind::FLOAT_CPU);
    let y = Tensor::zeros([512], tch::kind::INT64_CPU);
    let mut step = || pipe.train_step(&x, &y, cross_entropy).unwrap();
    step();
    step().memory.unwrap().stages[0].unwrap().held.0
}

fn linear(path: &nn::Path<'_>, outputs: i64) -> nn::Linear {
    nn::linear(path, 64, outputs, nn::LinearConfig::default())
}

/// A first stage whose input needs no gradient has work for both halves: the layers after its first one take
/// part in the input pass, and are free after it.
#[test]
fn a_first_stage_without_an_input_gradient_splits_usefully() {
    let whole = held("0F0 0F1 0I0 0I1 0W0 0W1");
    let early = held("0F0 0I0 0F1 0I1 0W0 0W1");
    assert!(
        early * 4 < whole * 3,
        "{early} of {whole} bytes: an input pass frees what the weight pass does not need"
    );
}

/// libtorch 2.11's group norm crashes if only the gradients of its weights are requested and its input is in
/// channels-last layout.
#[test]
fn group_norm_over_channels_last_survives_its_weight_pass() {
    single_threaded();
    let config = nn::ConvConfig {
        padding: 1,
        ..nn::ConvConfig::default()
    };
    let model = || {
        (0..3).fold(Sequential::new(), |model, number| {
            model
                .layer(format!("conv{number}"), move |p| {
                    nn::conv2d(p, 4, 4, 3, config)
                })
                .layer(format!("norm{number}"), |p| {
                    nn::group_norm(p, 2, 4, nn::GroupNormConfig::default())
                })
        })
    };
    let step = |builder: PipelineBuilder, asks: bool| {
        let mut pipe = builder.threads_per_stage(1).build().unwrap();
        let wave = Tensor::arange(8 * 64 * 4, tch::kind::FLOAT_CPU).sin();
        let x = wave.view([8, 8, 8, 4]).permute([0, 3, 1, 2]);
        let x = x.set_requires_grad(asks);
        let loss = |out: &Tensor, _: &Tensor| out.square().mean(out.kind());
        let report = pipe.train_step(&x, x.detach(), loss).unwrap();
        (report.read().unwrap().loss.to_bits(), gradients(&mut pipe))
    };
    for asks in [false, true] {
        let joint = step(
            Pipeline::builder(model()).micro_batches(MICRO_BATCHES),
            asks,
        );
        for stages in [1, 3] {
            let split = Pipeline::builder(model())
                .devices(&cpus(stages))
                .custom_schedule(schedule(stages, Order::AtTheEnd));
            let split = step(split, asks);
            assert_eq!(split.0, joint.0, "{stages} stages");
            assert_same_bits(&split.1, &joint.1, &format!("{stages} stages"));
        }
    }
}
