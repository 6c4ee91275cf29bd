//! `gpipe-rs train`: a character-level GPT on a text, as a pipeline.

mod check;
mod memory;
mod options;
mod outcome;
mod planned;
mod progress;
mod report;
mod run_folder;
mod sample;
mod values;

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Plan, render};
use tch::{Kind, Tensor};

use super::Failure;
use crate::data::{Prefetch, Sampler, TextError, TextSet, Windows};
use crate::models::gpt;
use crate::{Error, Optimizer, Pipeline, StepReport, Values};

pub(super) use options::Args;

use outcome::Outcome;
use progress::Progress;
use report::Comparison;
use run_folder::{RunFolder, StepRecord};

/// Columns of the timeline that is printed at the end.
const WIDTH: usize = 100;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    silence_caught_panics();
    let plan = args.plan.as_deref().map(planned::read).transpose()?;
    let args = &match &plan {
        Some(plan) => planned::applied(args, plan)?,
        None => args.clone(),
    };
    check::check(args)?;
    let text = Arc::new(args.text()?);
    text.require(args.seq)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let mut pipe = build(args, &text, plan.as_ref())?;
    let mut folder = RunFolder::create(args, &pipe)?;
    let progress = Progress::new(args, &pipe);
    let mut outcome = train(
        args,
        &text,
        &mut pipe,
        &mut folder,
        &progress,
        plan.as_ref(),
    )?;
    progress.say("measuring the held-out loss");
    outcome.held_out_loss = held_out_loss(&mut pipe, &text, args)?;
    if !args.json {
        outcome.sample = Some(sample::generate(&mut pipe, &text, args)?);
    }
    outcome.print(args, plan.as_ref())?;
    outcome.files
}

/// A layer's panic becomes the error that ends the run, with stage, layer and
/// micro-batch; the default message and back-trace would only bury it.
pub(super) fn silence_caught_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !crate::torch::catching() {
            default(info);
        }
    }));
}

fn train(
    args: &Args,
    text: &Arc<TextSet>,
    pipe: &mut Pipeline,
    folder: &mut RunFolder,
    progress: &Progress,
    plan: Option<&Plan>,
) -> Result<Outcome, Failure> {
    let mut optimizer = Optimizer::new(args.optimizer());
    let mut outcome = Outcome::new(folder.path());
    for (step, windows) in (1..).zip(batches(args, text)?) {
        // A computed schedule may change after a step: what counts is the one before.
        let schedule = (step == args.steps).then(|| pipe.schedule());
        let schedule = schedule.transpose().map_err(failure)?;
        let start = Instant::now();
        let (x, y) = windows?.tensors()?;
        let report = pipe.train_step(x, y, next_token_loss).map_err(failure)?;
        optimizer.step(pipe).map_err(failure)?;
        let record = record(step, &report, start.elapsed().as_secs_f64(), args);
        folder.step(&record)?;
        progress.step(&record);
        outcome.add(&record);
        if let Some(schedule) = schedule {
            let comparison = Comparison::new(args, args.steps, &report, &schedule)?.with_plan(plan);
            outcome.comparison = comparison.text(WIDTH);
            // A file that cannot be written must not cost what the training came to.
            outcome.files = last_step(args, &report, &comparison, folder);
            outcome.memory.clone_from(&report.memory);
        }
        if !report.loss.is_finite() {
            let why = format!(
                "the loss is {} at step {step}: try a smaller --lr",
                report.loss
            );
            return Err(Failure::Run(anyhow::anyhow!(why)));
        }
    }
    progress.finish();
    Ok(outcome)
}

/// Writes the files that are about the last step.
fn last_step(
    args: &Args,
    report: &StepReport,
    comparison: &Comparison,
    folder: &RunFolder,
) -> Result<(), Failure> {
    let trace = render::chrome_trace(&report.timeline);
    folder.trace(&trace)?;
    if let Some(path) = &args.trace {
        run_folder::write(path, trace.as_bytes())?;
    }
    if let Some(path) = &args.report {
        run_folder::write(path, comparison.file(path)?.as_bytes())?;
    }
    Ok(())
}

/// A run's batches, made ahead of their use.
fn batches(
    args: &Args,
    text: &Arc<TextSet>,
) -> std::io::Result<Prefetch<Result<Windows, TextError>>> {
    let (text, batch, seq) = (Arc::clone(text), args.batch, args.seq);
    let mut sampler = Sampler::new(args.seed);
    let draw = move || sampler.batch(&text, batch, seq);
    Prefetch::new(2, std::iter::repeat_with(draw).take(args.steps))
}

fn record(step: usize, report: &StepReport, seconds: f64, args: &Args) -> StepRecord {
    let tokens = (args.batch * args.seq) as f64;
    StepRecord {
        step,
        loss: report.loss,
        tokens_per_s: tokens / seconds,
        step_ms: seconds * 1e3,
        makespan_ms: report.timeline.makespan().get() / 1e3,
        bubble_measured: report.bubble_measured(),
        bubble_predicted: report.bubble_predicted(),
        chunks: args.chunks(),
        recompute: args.recompute.to_string(),
    }
}

/// Mean cross-entropy of the next token, in nats.
pub(super) fn next_token_loss(logits: &Tensor, targets: &Tensor) -> Result<Tensor, tch::TchError> {
    let vocab = logits.size().last().copied().unwrap_or(1);
    logits.f_view([-1, vocab])?.f_cross_entropy_loss(
        &targets.f_view([-1])?,
        None::<Tensor>,
        tch::Reduction::Mean,
        -100,
        0.0,
    )
}

/// Mean loss over the held-out text in windows, in nats per character.
fn held_out_loss(pipe: &mut Pipeline, text: &TextSet, args: &Args) -> Result<f64, Failure> {
    let (mut sum, mut count) = (0.0, 0.0);
    for windows in text.held_out(args.batch, args.seq) {
        let (x, y) = windows.tensors()?;
        let logits = pipe.forward(Values::from(x)).map_err(failure)?;
        let y = y.to_device(logits.device());
        let tokens = y.numel() as f64;
        sum += next_token_loss(&logits.to_kind(Kind::Float), &y)?.double_value(&[]) * tokens;
        count += tokens;
    }
    Ok(sum / count)
}

/// Wrong use or a failed run, as the library tells them apart.
pub(super) fn failure(error: Error) -> Failure {
    if error.is_wrong_use() {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}

fn build(args: &Args, text: &TextSet, plan: Option<&Plan>) -> Result<Pipeline, Failure> {
    let model = gpt(args.sizes(text.vocabulary().len()));
    let mut builder = Pipeline::builder(model)
        .devices(&args.devices)
        .micro_batches(args.micro)
        .schedule(args.schedule)
        .measure_memory(true)
        .chunks(args.chunks())
        .recompute(args.recompute.clone())
        .seed(args.seed);
    if let Some(balance) = &args.balance {
        builder = builder.balance(balance);
    }
    if let Some(plan) = plan {
        builder = builder.plan(plan).map_err(failure)?;
    }
    if let Some(threads) = args.threads_per_stage {
        builder = builder.threads_per_stage(threads);
    }
    builder.build().map_err(failure)
}
