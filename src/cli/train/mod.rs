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
mod update;
mod utilisation;
mod values;

use std::time::Instant;

use gpipe_partitioner::render;

use super::Failure;
use crate::metrics::StepMetrics;
use crate::models::zoo::Zoo;
use crate::{Error, Optimizer, Pipeline, StepReport, Values};

pub(super) use options::Args;

use job::Job;
use outcome::Outcome;
use progress::Progress;
use report::Comparison;
use resolved::Resolved;
use run_folder::RunFolder;

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
    let (steps, seed) = (recipe.steps, recipe.seed);
    let mut batches = job.source.feed(spec, recipe.batch, steps, seed, None)?;
    for step in 1..=steps {
        // A computed schedule may change after a step: what counts is the one before.
        let schedule = (step == steps).then(|| pipe.schedule());
        let schedule = schedule.transpose().map_err(failure)?;
        let begin = Instant::now();
        let Some(batch) = batches.next().transpose()? else {
            break;
        };
        let waited = begin.elapsed();
        let begin = Instant::now();
        let (metrics, report) = one_step(job, pipe, &mut optimizer, step, batch)?;
        let metrics = metrics.timed(recipe.batch, waited, begin.elapsed());
        let metrics = with_rates(job, metrics);
        folder.step(&metrics)?;
        progress.step(&metrics);
        outcome.add(&metrics);
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

/// Gradients of a batch and the update by them; what it came to, but for its speed.
fn one_step(
    job: &Job,
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    step: usize,
    (x, y): (Values, Values),
) -> Result<(StepMetrics, StepReport), Failure> {
    let report = pipe
        .train_step(x, y, job.chosen.spec.loss())
        .map_err(failure)?;
    let grad_norm = clip(pipe, job.recipe.clip)?;
    let lr = job.rates.at(step as u64);
    optimizer.set_lr(lr);
    optimizer.step(pipe).map_err(failure)?;
    let metrics = StepMetrics {
        lr,
        grad_norm,
        chunks: job.recipe.chunks(),
        recompute: job.recipe.recompute.to_string(),
        ..StepMetrics::of(step as u64, &report)
    };
    Ok((metrics, report))
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

/// What follows from how fast it went.
fn with_rates(job: &Job, metrics: StepMetrics) -> StepMetrics {
    let samples = metrics.samples_per_s;
    let utilisation = job.utilisation.as_ref();
    StepMetrics {
        tokens_per_s: job.tokens.map(|tokens| tokens as f64 * samples),
        mfu: utilisation.map(|utilisation| utilisation.at(samples)),
        ..metrics
    }
}

/// Wrong use or a failed run, as the library tells them apart.
pub(super) fn failure(error: Error) -> Failure {
    if error.is_wrong_use() {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}
