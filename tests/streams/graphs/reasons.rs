//! Stages that cannot be captured run as usual, and give the reason.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::torch::streams::Recorder;
use gpipe::{
    Layer, Pipeline, PipelineBuilder, Sequential, Values, error::NonFinite, layers::Context,
    settings::Recompute,
};

use super::setup::{Pair, Setup, WARM_UP};
use crate::support::everywhere::{Closure, plain_linear, with_linear};
use crate::support::{batch, cpus, cross_entropy, models, single_threaded};

const SETUP: Setup = Setup {
    stages: 2,
    micro_batches: 2,
    schedule: ScheduleKind::OneFOneB,
};

/// The reason of each stage, after enough steps; checks that the numbers are those without graphs.
fn reasons(build: impl Fn() -> PipelineBuilder) -> Vec<Option<String>> {
    single_threaded();
    let mut pair = Pair::new(&SETUP, build);
    let batch = batch(&[8, 8], 8);
    for step in 0..WARM_UP + 2 {
        pair.step(&batch, || cross_entropy, &format!("step {step}"));
    }
    let uses = pair.finish("reasons");
    for used in &uses {
        assert_eq!(used.eager.is_some(), used.replayed == 0, "{used:?}");
    }
    uses.into_iter().map(|used| used.eager).collect()
}

fn two(first: impl Fn(Sequential) -> Sequential) -> PipelineBuilder {
    let model = plain_linear(first(Sequential::new()), "second");
    SETUP.builder(model).balance(&[1, 1])
}

fn assert_first_alone(reasons: &[Option<String>], part: &str) {
    let first = reasons[0].as_deref().unwrap_or_default();
    assert!(first.contains(part), "no `{part}` in: {reasons:?}");
    assert_eq!(reasons[1], None);
}

/// A layer that does not declare whether it can be replayed.
#[derive(Debug)]
struct Silent(nn::Linear);
impl Layer for Silent {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        Ok(inputs.one()?.apply(&self.0).into())
    }
}

#[test]
fn layers_that_draw_ask_or_do_not_say_keep_their_stage_without() {
    let drawing = |model| with_linear(model, "first", |x, l, ctx| ctx.dropout(&x.apply(l), 0.5));
    assert_first_alone(
        &reasons(|| two(drawing)),
        "layer `first` draws random numbers",
    );
    let asking = |model| {
        with_linear(model, "first", |x, l, ctx| {
            Ok(x.apply(l) * (ctx.micro().index() as f64))
        })
    };
    assert_first_alone(
        &reasons(|| two(asking)),
        "layer `first` asks for its micro-batch",
    );
    let silent = |model: Sequential| {
        model.layer("first", |p| {
            Silent(nn::linear(p, 8, 8, nn::LinearConfig::default()))
        })
    };
    assert_first_alone(&reasons(|| two(silent)), "`Layer::graph_safe`");
}

#[test]
fn settings_that_look_at_actions_or_repeat_them_do_too() {
    let plain = |model| plain_linear(model, "first");
    let recomputing = || two(plain).recompute(Recompute::Stages(vec![true, false]));
    assert_first_alone(&reasons(recomputing), "recomputes");
    let looking = reasons(|| two(plain).on_non_finite(NonFinite::Fail));
    let measuring = reasons(|| two(plain).measure_memory(true));
    for (reasons, part) in [(looking, "not finite"), (measuring, "memory is measured")] {
        for reason in reasons {
            assert!(reason.unwrap().contains(part));
        }
    }
}

#[test]
fn a_loss_that_writes_to_the_outputs_keeps_the_last_stage_without() {
    single_threaded();
    let plain = |model| plain_linear(model, "first");
    let mut pair = Pair::new(&SETUP, || two(plain));
    let batch = batch(&[8, 8], 8);
    let writing = || {
        |out: &Tensor, y: &Tensor| {
            (out.shallow_clone() + 0.0)
                .g_mul_scalar_(2.0)
                .cross_entropy_for_logits(y)
        }
    };
    let in_place = || {
        |out: &Tensor, y: &Tensor| {
            let mut out = out.shallow_clone();
            let _ = out.g_mul_scalar_(2.0);
            out.cross_entropy_for_logits(y)
        }
    };
    for step in 0..WARM_UP {
        pair.step(&batch, writing, &format!("step {step}"));
    }
    pair.step(&batch, writing, "captured");
    assert!(pair.uses()[1].replayed > 0);
    // In-place changes that begin after capture are reported and undone, and work from then on.
    let error = pair
        .graphs
        .step(&batch, in_place())
        .unwrap_err()
        .to_string();
    assert!(error.contains("run the step again"), "{error}");
    pair.step(&batch, in_place, "again");
    let uses = pair.finish("in place");
    assert_eq!(uses[0].eager, None);
    assert!(uses[1].eager.as_ref().unwrap().contains("loss function"));
}

/// A slot has separate memory for each value.
#[test]
fn values_that_share_memory_keep_both_their_stages_without() {
    let layer = |body: fn(Values, &nn::Linear) -> Values| {
        move |path: &nn::Path<'_>| {
            let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
            Closure(move |x: Values, _: &Context| Ok(body(x, &linear)))
        }
    };
    let build = || {
        let model = Sequential::new()
            .layer(
                "twice",
                layer(|x, linear| {
                    let x = x.into_one().unwrap().apply(linear);
                    vec![x.shallow_clone(), x].into()
                }),
            )
            .layer(
                "write",
                layer(|x, linear| {
                    let (mut a, b) = (x.get(0).unwrap().shallow_clone(), x.get(1).unwrap());
                    let _ = a.g_mul_scalar_(2.0);
                    (a + b.apply(linear)).into()
                }),
            );
        SETUP.builder(model).balance(&[1, 1])
    };
    let reasons = reasons(build);
    for (reason, part) in reasons.iter().zip(["outputs", "inputs"]) {
        let words = format!("its {part} share memory");
        assert!(reason.as_ref().unwrap().contains(&words), "{reasons:?}");
    }
}

#[test]
fn a_stage_on_the_cpu_says_so() {
    let model = models::mlp();
    let recorder = Recorder::new(&[Some(0), None]);
    let build = |recorder: Option<&Recorder>| {
        let builder = Pipeline::builder(model.sequential())
            .devices(&cpus(2))
            .cuda_graphs(true);
        match recorder {
            Some(recorder) => builder.record_streams(recorder),
            None => builder,
        }
        .build()
        .unwrap()
    };
    let eager = |mut pipe: Pipeline| -> Vec<bool> {
        let uses = pipe.cuda_graphs().unwrap();
        let on_cpu = |why: &String| why.contains("on the CPU");
        uses.iter()
            .map(|used| used.eager.as_ref().is_some_and(on_cpu))
            .collect()
    };
    assert_eq!(eager(build(Some(&recorder))), [false, true]);
    assert_eq!(eager(build(None)), [true, true]);
    let mut unasked = Pipeline::new(model.sequential(), &cpus(2), 2).unwrap();
    assert!(unasked.cuda_graphs().unwrap().is_empty());
}
