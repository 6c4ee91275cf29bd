//! `gpipe-rs train`: a model of the zoo on a text or on made-up data, as a pipeline.

mod check;
mod config;
mod held_out;
mod job;
mod memory;
mod options;
mod outcome;
mod planned;
mod progress;
mod recipe;
mod report;
mod resolved;
mod run_folder;
mod sample;
mod values;

use std::time::Instant;

use gpipe_partitioner::render;

use super::Failure;
use crate::models::zoo::Zoo;
use crate::{Error, Pipeline, StepReport};

pub(super) use options::Args;

use job::Job;
use outcome::Outcome;
use progress::Progress;
use report::Comparison;
use resolved::Resolved;
use run_folder::{RunFolder, StepRecord};

/// Columns of the timeline that is printed at the end.
const WIDTH: usize = 100;

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    silence_caught_panics();
    let job = Job::new(args, zoo)?;
    let mut pipe = job.pipeline()?;
    let resolved = Resolved::new(&job, &pipe);
    let mut folder = RunFolder::create(job.args.out.as_deref(), &resolved.toml)?;
    let progress = Progress::new(&job);
    progress.begin(&job, &pipe, &resolved);
    let mut outcome = train(&job, &mut pipe, &mut folder, &progress)?;
    let held_out = job.source.held_out(job.recipe.batch);
    if let Some(batches) = held_out.map_err(anyhow::Error::from)? {
        progress.say("measuring the held-out loss");
        outcome.held_out_loss = Some(held_out::loss(&mut pipe, batches, &job)?);
    }
    if let Some((text, seq)) = job.source.text().filter(|_| !job.args.json) {
        outcome.sample = Some(sample::generate(&mut pipe, text, seq, job.recipe.seed));
    }
    outcome.print(&job)?;
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
    job: &Job,
    pipe: &mut Pipeline,
    folder: &mut RunFolder,
    progress: &Progress,
) -> Result<Outcome, Failure> {
    let (args, recipe, spec) = (&job.args, &job.recipe, &job.chosen.spec);
    let mut optimizer = job.optimizer();
    let mut outcome = Outcome::new(folder.path());
    let batches = job
        .source
        .feed(spec, recipe.batch, recipe.steps, recipe.seed, None)?;
    for (step, batch) in (1..).zip(batches) {
        // A computed schedule may change after a step: what counts is the one before.
        let schedule = (step == recipe.steps).then(|| pipe.schedule());
        let schedule = schedule.transpose().map_err(failure)?;
        let (x, y) = batch?;
        let start = Instant::now();
        let report = pipe.train_step(x, y, spec.loss()).map_err(failure)?;
        clip(pipe, recipe.clip)?;
        optimizer.set_lr(recipe.lr_at(step));
        optimizer.step(pipe).map_err(failure)?;
        let record = record(step, &report, start.elapsed().as_secs_f64(), job);
        folder.step(&record)?;
        progress.step(&record);
        outcome.add(&record);
        if let Some(schedule) = schedule {
            let comparison =
                Comparison::new(recipe, step, &report, &schedule)?.with_plan(job.plan.as_ref());
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

/// Limits the gradients where that is asked for, and measures them otherwise: their norm.
fn clip(pipe: &mut Pipeline, limit: Option<f64>) -> Result<Option<f64>, Failure> {
    match limit {
        Some(limit) => Ok(Some(pipe.clip_grad_norm(limit).map_err(failure)?)),
        // What cannot be measured the optimizer refuses, and names the parameter.
        None => Ok(pipe.clip_grad_norm(f64::INFINITY).ok()),
    }
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

fn record(step: usize, report: &StepReport, seconds: f64, job: &Job) -> StepRecord {
    let samples_per_s = job.recipe.batch as f64 / seconds;
    StepRecord {
        step,
        loss: report.loss,
        samples_per_s,
        tokens_per_s: job.tokens.map(|tokens| tokens as f64 * samples_per_s),
        step_ms: seconds * 1e3,
        makespan_ms: report.timeline.makespan().get() / 1e3,
        bubble_measured: report.bubble_measured(),
        bubble_predicted: report.bubble_predicted(),
        chunks: job.recipe.chunks(),
        recompute: job.recipe.recompute.to_string(),
    }
}

/// Wrong use or a failed run, as the library tells them apart.
pub(super) fn failure(error: Error) -> Failure {
    if error.is_wrong_use() {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}
