//! Stages that cannot be captured run as usual, and give the reason.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Tensor, nn};
use gpipe::{
    Layer, Pipeline, PipelineBuilder, Sequential, Values, error::NonFinite, layers::Context,
    settings::Recompute,
};

use super::pair::{Pair, WARM_UP, builder};
use crate::harness::Test;
use crate::support::everywhere::{Closure, plain_linear, with_linear};
use crate::support::{batch, cross_entropy, models};

pub(super) fn tests() -> Vec<Test> {
    vec![
        (
            "graphs::layers_that_draw_ask_or_do_not_say_have_none",
            layers,
        ),
        (
            "graphs::settings_that_look_at_actions_or_repeat_them_have_none",
            settings,
        ),
        (
            "graphs::a_loss_that_writes_to_the_outputs_has_none",
            writing_loss,
        ),
        ("graphs::values_that_share_memory_have_none", shared_memory),
        ("graphs::a_stage_on_the_cpu_has_none", on_the_cpu),
    ]
}

/// The reason of each stage, after enough steps; checks that the numbers are those without graphs.
fn reasons(build: impl Fn() -> PipelineBuilder) -> Vec<Option<String>> {
    let mut pair = Pair::new(build);
    for step in 0..WARM_UP + 2 {
        pair.step(
            &batch(&[8, 8], 8),
            || cross_entropy,
            &format!("step {step}"),
        );
    }
    let uses = pair.finish("reasons");
    for used in &uses {
        assert_eq!(used.eager.is_some(), used.replayed == 0, "{used:?}");
    }
    uses.into_iter().map(|used| used.eager).collect()
}

fn two(first: impl Fn(Sequential) -> Sequential) -> PipelineBuilder {
    let model = plain_linear(first(Sequential::new()), "second");
    builder(model, ScheduleKind::OneFOneB).balance(&[1, 1])
}

fn first_alone(build: impl Fn() -> PipelineBuilder, part: &str) {
    let reasons = reasons(build);
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

fn layers() {
    let drawing = |model| with_linear(model, "first", |x, l, ctx| ctx.dropout(&x.apply(l), 0.5));
    first_alone(|| two(drawing), "layer `first` draws random numbers");
    let asking = |model| {
        with_linear(model, "first", |x, l, ctx| {
            Ok(x.apply(l) * (ctx.micro().index() as f64))
        })
    };
    first_alone(|| two(asking), "layer `first` asks for its micro-batch");
    let silent = |model: Sequential| {
        model.layer("first", |p| {
            Silent(nn::linear(p, 8, 8, nn::LinearConfig::default()))
        })
    };
    first_alone(|| two(silent), "`Layer::graph_safe`");
}

fn settings() {
    let plain = |model| plain_linear(model, "first");
    let recomputing = || two(plain).recompute(Recompute::Stages(vec![true, false]));
    first_alone(recomputing, "recomputes");
    let looking = reasons(|| two(plain).on_non_finite(NonFinite::Fail));
    let measuring = reasons(|| two(plain).measure_memory(true));
    for (reasons, part) in [(looking, "not finite"), (measuring, "memory is measured")] {
        for reason in reasons {
            assert!(reason.unwrap().contains(part));
        }
    }
}

fn writing_loss() {
    let mut pair = Pair::new(|| two(|model| plain_linear(model, "first")));
    let batch = batch(&[8, 8], 8);
    let on_a_copy =
        || |out: &Tensor, y: &Tensor| (out + 0.0).g_mul_scalar_(2.0).cross_entropy_for_logits(y);
    let in_place = || {
        |out: &Tensor, y: &Tensor| {
            let mut out = out.shallow_clone();
            let _ = out.g_mul_scalar_(2.0);
            out.cross_entropy_for_logits(y)
        }
    };
    for step in 0..=WARM_UP {
        pair.step(&batch, on_a_copy, &format!("step {step}"));
    }
    assert!(pair.uses()[1].replayed > 0);
    // In-place changes that begin after capture are reported and undone, and work from then on.
    let error = pair.graphs.step(&batch, in_place()).unwrap_err();
    assert!(error.to_string().contains("run the step again"), "{error}");
    pair.step(&batch, in_place, "again");
    let uses = pair.finish("in place");
    assert_eq!(uses[0].eager, None);
    assert!(uses[1].eager.as_ref().unwrap().contains("loss function"));
}

/// A slot has separate memory for each value.
fn shared_memory() {
    let layer = |body: fn(Values, &nn::Linear) -> Values| {
        move |path: &nn::Path<'_>| {
            let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
            Closure(move |x: Values, _: &Context| Ok(body(x, &linear)))
        }
    };
    let twice = layer(|x, linear| {
        let x = x.into_one().unwrap().apply(linear);
        vec![x.shallow_clone(), x].into()
    });
    let write = layer(|x, linear| {
        let (mut a, b) = (x.get(0).unwrap().shallow_clone(), x.get(1).unwrap());
        let _ = a.g_mul_scalar_(2.0);
        (a + b.apply(linear)).into()
    });
    let reasons = reasons(|| {
        let model = Sequential::new()
            .layer("twice", twice)
            .layer("write", write);
        builder(model, ScheduleKind::OneFOneB).balance(&[1, 1])
    });
    for (reason, part) in reasons.iter().zip(["outputs", "inputs"]) {
        let words = format!("its {part} share memory");
        assert!(reason.as_ref().unwrap().contains(&words), "{reasons:?}");
    }
}

fn on_the_cpu() {
    let eager = |devices: [Device; 2]| -> Vec<bool> {
        let builder = Pipeline::builder(models::mlp().sequential()).devices(&devices);
        let mut pipe = builder.cuda_graphs(true).build().unwrap();
        let uses = pipe.cuda_graphs().unwrap();
        let on_cpu = |why: &String| why.contains("on the CPU");
        uses.iter()
            .map(|used| used.eager.as_ref().is_some_and(on_cpu))
            .collect()
    };
    assert_eq!(eager([Device::Cuda(0), Device::Cpu]), [false, true]);
    assert_eq!(eager([Device::Cpu; 2]), [true, true]);
    let model = models::mlp().sequential();
    let mut unasked = Pipeline::new(model, &[Device::Cuda(0); 2], 2).unwrap();
    assert!(unasked.cuda_graphs().unwrap().is_empty());
}
