//! `gpipe-rs train`: a character-level GPT on a text, as a pipeline.

mod options;
mod outcome;
mod progress;
mod run_folder;
mod sample;

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::render;
use tch::{Kind, Tensor};

use super::Failure;
use crate::data::{Prefetch, Sampler, TextError, TextSet, Windows};
use crate::engine::EngineError;
use crate::models::gpt;
use crate::{Error, Optimizer, Pipeline, StepReport, Values};

pub(super) use options::Args;

use options::Options;
use outcome::Outcome;
use progress::Progress;
use run_folder::{RunFolder, StepRecord};

/// Columns of the timeline that is printed at the end.
const WIDTH: usize = 100;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    silence_stage_panics();
    let options = Options::new(args)?;
    let text = Arc::new(options.text()?);
    text.require(options.seq)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let mut pipe = options.pipeline(&text)?;
    let mut folder = RunFolder::create(&options, &pipe)?;
    let progress = Progress::new(&options, &pipe);
    let mut outcome = train(&options, &text, &mut pipe, &mut folder, &progress)?;
    progress.say("measuring the held-out loss");
    outcome.held_out_loss = held_out_loss(&mut pipe, &text, &options)?;
    if !args.json {
        outcome.sample = Some(sample::generate(&mut pipe, &text, &options)?);
    }
    outcome.print(args.json)?;
    Ok(())
}

/// A stage's panic becomes the error that ends the run, with stage, layer and
/// micro-batch; the default message and back-trace would only bury it.
fn silence_stage_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        if !thread.name().is_some_and(|name| name.starts_with("stage-")) {
            default(info);
        }
    }));
}

fn train(
    options: &Options,
    text: &Arc<TextSet>,
    pipe: &mut Pipeline,
    folder: &mut RunFolder,
    progress: &Progress,
) -> Result<Outcome, Failure> {
    let mut optimizer = Optimizer::new(options.optimizer());
    let mut outcome = Outcome::new(folder.path());
    for (step, windows) in (1..).zip(batches(options, text)?) {
        let start = Instant::now();
        let (x, y) = windows?.tensors()?;
        let report = pipe.train_step(x, y, next_token_loss).map_err(failure)?;
        optimizer.step(pipe).map_err(failure)?;
        let record = record(step, &report, start.elapsed().as_secs_f64(), options);
        folder.step(&record)?;
        progress.step(&record);
        outcome.add(&record);
        if step == options.steps {
            folder.trace(&report.timeline)?;
            outcome.timeline = render::text(&report.timeline, WIDTH);
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

/// A run's batches, made ahead of their use.
fn batches(
    options: &Options,
    text: &Arc<TextSet>,
) -> std::io::Result<Prefetch<Result<Windows, TextError>>> {
    let (text, batch, seq) = (Arc::clone(text), options.batch, options.seq);
    let mut sampler = Sampler::new(options.seed);
    let draw = move || sampler.batch(&text, batch, seq);
    Prefetch::new(2, std::iter::repeat_with(draw).take(options.steps))
}

fn record(step: usize, report: &StepReport, seconds: f64, options: &Options) -> StepRecord {
    let tokens = (options.batch * options.seq) as f64;
    StepRecord {
        step,
        loss: report.loss,
        tokens_per_s: tokens / seconds,
        step_ms: seconds * 1e3,
        bubble_measured: report.bubble_measured(),
        bubble_predicted: report.bubble_predicted(),
    }
}

/// Mean cross-entropy of the next token, in nats.
fn next_token_loss(logits: &Tensor, targets: &Tensor) -> Result<Tensor, tch::TchError> {
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
fn held_out_loss(pipe: &mut Pipeline, text: &TextSet, options: &Options) -> Result<f64, Failure> {
    let (mut sum, mut count) = (0.0, 0.0);
    for windows in text.held_out(options.batch, options.seq) {
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
fn failure(error: Error) -> Failure {
    let build = matches!(
        &error,
        Error::Engine(EngineError::Build { .. }) | Error::Build(_)
    );
    if error.is_wrong_use() || build {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}

fn build(options: &Options, text: &TextSet) -> Result<Pipeline, Failure> {
    let model = gpt(options.sizes(text.vocabulary().len()));
    let mut builder = Pipeline::builder(model)
        .devices(&options.devices)
        .micro_batches(options.micro)
        .schedule(options.schedule)
        .seed(options.seed);
    if let Some(balance) = &options.balance {
        builder = builder.balance(balance);
    }
    if let Some(threads) = options.threads_per_stage {
        builder = builder.threads_per_stage(threads);
    }
    builder.build().map_err(failure)
}
