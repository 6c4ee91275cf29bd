//! Cost of the host.

use std::time::Instant;

use anyhow::Result;
use gpipe::Pipeline;
use gpipe::models::zoo::token_cross_entropy;
use gpipe::models::{Gpt, gpt};
use gpipe::partitioner::{ScheduleKind, plan};
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use serde_json::{Value, json};

use super::job::{GPT_1B3, Job};
use super::plain::PlainGpt;
use super::report_support::{Report, median};

const GPU: Device = Device::Cuda(0);
/// Micro-batches per step.
const MICRO: i64 = 8;
const WARM_UP: usize = 3;
const PAIRS: usize = 25;

/// Small micro-batches, so that the host is slower than the devices.
pub(crate) fn limit() -> Result<Value> {
    let job = Job {
        model: Gpt {
            context: 128,
            ..GPT_1B3
        },
        devices: 8,
        samples: 1,
        micro_batches: 16,
        large: false,
    };
    let measured = job.profile()?;
    let mut options = job.plan_options(&measured)?;
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.cuda_graphs = gpipe::partitioner::When::Never;
    let plan = plan(&measured.profile, &options)?;
    let ran = job.planned(&plan)?;
    Ok(json!({
        "of_the_profile": measured.host_share,
        "of_the_step": ran.host_share,
        "predicted_ms": plan.step.get() / 1e3,
        "measured_ms": ran.makespan / 1e3,
    }))
}

/// Compares a step on a device that takes no time with plain tch, in turn.
pub(crate) fn cost() -> Result<Value> {
    let model = Gpt {
        blocks: 12,
        context: 128,
        ..GPT_1B3
    };
    let mut pipe = Pipeline::builder(gpt(model))
        .devices(&[GPU])
        .micro_batches(usize::try_from(MICRO)?)
        .build()?;
    let store = nn::VarStore::new(GPU);
    let plain = PlainGpt::new(&store.root(), model);
    let tokens = Tensor::f_zeros([MICRO, model.context], (Kind::Int64, GPU))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..WARM_UP + PAIRS {
        let own = timed(|| {
            pipe.train_step(&tokens, &tokens, token_cross_entropy)?
                .read()?;
            Ok(())
        })?;
        pipe.zero_grad()?;
        let other = timed(|| step(&plain, &tokens))?;
        for mut variable in store.trainable_variables() {
            variable.zero_grad();
        }
        if pair >= WARM_UP {
            ours.push(own);
            theirs.push(other);
        }
    }
    let pairs = ours.iter().zip(&theirs).map(|(own, other)| own / other);
    let ratio = median(pairs.collect());
    let each = 1e6 / (MICRO as f64 * (model.blocks + 2) as f64);
    Ok(json!({
        "ratio": ratio,
        "us_per_layer_and_micro_batch": median(ours) * each,
        "plain_tch": median(theirs) * each,
    }))
}

fn timed(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    tch::Cuda::synchronize(0);
    let begin = Instant::now();
    body()?;
    tch::Cuda::synchronize(0);
    Ok(begin.elapsed().as_secs_f64())
}

/// Accumulates gradients over all micro-batches and reads the loss, like a step of the pipeline.
fn step(model: &PlainGpt, tokens: &Tensor) -> Result<()> {
    let mut total = Tensor::f_zeros([1], (Kind::Double, GPU))?;
    for tokens in tokens.f_chunk(MICRO, 0)? {
        let loss = token_cross_entropy(&model.forward(&tokens)?, &tokens)?;
        let loss = loss.f_div_scalar(MICRO)?;
        loss.f_backward()?;
        total = total.f_add(&loss.f_detach()?)?;
    }
    let _: f64 = total.f_double_value(&[0])?;
    Ok(())
}

pub(crate) fn claims(report: &mut Report, limit: &Value, cost: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    report.at_least(
        "small micro-batches on 8 timed H100s: the host's share",
        number(&limit["of_the_step"]),
        0.9,
        "",
    );
    report.at_most(
        "host time of a micro-batch and layer over plain tch's",
        number(&cost["ratio"]),
        1.10,
        "",
    );
}
