//! `gpipe-rs train`: a model of the zoo on a text or on made-up data, as a pipeline.

mod check;
mod checkpoints;
mod config;
mod config_diff;
mod cut;
mod device_options;
mod from_plan;
mod graphs;
mod held_out;
mod job;
mod memory;
mod optimizer_options;
mod options;
mod outcome;
mod progress;
mod recipe;
mod report;
mod resolved;
mod resume;
mod run_folder;
mod sample;
mod signals;
mod step;
mod training;
mod utilisation;
mod values;
mod weights;

use gpipe_partitioner::words;

use super::{Failure, say};
use crate::Error;
use crate::models::zoo::Zoo;

pub(super) use options::Args;

use job::Job;
use outcome::Outcome;
use progress::Progress;
use resolved::Resolved;
use resume::TakenUp;
use signals::Stop;
use training::{Ended, Training};

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    // What needs no model is told before one is made.
    if let (None, Some(out)) = (&args.resume, &args.out) {
        run_folder::check_free(out)?;
    }
    let taken_up = args.resume.as_deref().map(|run| TakenUp::open(run, args));
    let taken_up = taken_up.transpose()?;
    let mut job = match &taken_up {
        Some(taken_up) => taken_up.job(args, zoo)?,
        None => Job::new(args, zoo)?,
    };
    let mut pipe = job.pipeline()?;
    let resolved = Resolved::new(&job, &pipe);
    let notes = taken_up.as_ref().map(|own| own.check(&job, &resolved.toml));
    let notes = notes.transpose()?.unwrap_or_default();
    if let Some(finished) = taken_up.as_ref().filter(|own| own.is_finished(&job)) {
        say(&finished.nothing_left(&job));
        return Ok(());
    }
    if let Some(weights) = job.weights.take() {
        pipe.load(&weights.all).map_err(failure)?;
    }
    let progress = Progress::new(&job);
    progress.begin(&job, &pipe, &resolved);
    notes.iter().for_each(|note| progress.say(note));
    let mut training = Training::begin(&job, &mut pipe, &resolved, taken_up)?;
    let stop = Stop::listen()?;
    let ended = training.run(&mut pipe, &progress, &stop)?;
    let mut outcome = training.into_outcome();
    if let Ended::Stopped { step } = ended {
        return stopped(&job, outcome, step);
    }
    let held_out = (job.source).held_out(job.recipe.batch, job.recipe.held_out);
    if let Some((batches, count)) = held_out.map_err(anyhow::Error::from)? {
        progress.say(&format!(
            "all steps are done; measuring the held-out loss ({}; --held-out N takes fewer)",
            words::count(count, "batch")
        ));
        let bar = progress.judging(count);
        outcome.held_out_loss = held_out::loss(&mut pipe, bar.wrap_iter(batches), &job, &stop)?;
        bar.finish_and_clear();
        if outcome.held_out_loss.is_none() {
            return unjudged(&job, outcome);
        }
    }
    if let Some(text) = job.source.text().filter(|_| !job.args.json) {
        let sample = sample::generate(&mut pipe, text, job.recipe.seed, &stop);
        outcome.sample = Some(sample);
    }
    // Nothing is left that a signal could cut short.
    stop.at_once();
    outcome.print(&job)?;
    outcome.files?;
    match outcome.held_out_loss {
        Some(loss) if !loss.is_finite() => Err(Failure::Run(anyhow::anyhow!(
            "the held-out loss is {loss} after the last step: try a smaller --lr"
        ))),
        _ => Ok(()),
    }
}

/// Says how to go on with a run that a signal ended.
fn stopped(job: &Job, outcome: Outcome, step: usize) -> Result<(), Failure> {
    let steps = job.recipe.steps;
    let run = outcome.run_dir().display().to_string();
    if job.args.json {
        outcome.print(job)?;
    }
    outcome.files?;
    if job.recipe.checkpoint_every == 0 {
        say(&format!(
            "stopped after step {step} of {steps}; nothing was saved, as checkpoint.every is 0"
        ));
    } else {
        say(&format!(
            "stopped after step {step} of {steps} and saved; go on with: {} train --resume {run}",
            program()
        ));
    }
    Ok(())
}

/// Says what a run came to that a signal ended after its last step.
fn unjudged(job: &Job, outcome: Outcome) -> Result<(), Failure> {
    let steps = job.recipe.steps;
    let run = outcome.run_dir().display().to_string();
    outcome.print(job)?;
    outcome.files?;
    let saved = if job.recipe.checkpoint_every == 0 {
        "nothing was saved, as checkpoint.every is 0".to_owned()
    } else {
        format!(
            "they are saved; measure it with: {} eval --run {run}",
            program()
        )
    };
    say(&format!(
        "stopped before the held-out loss was measured; all {steps} steps are done, and {saved}"
    ));
    Ok(())
}

/// How this program was called.
fn program() -> String {
    let own = std::env::args_os().next();
    own.map_or_else(String::new, |own| own.to_string_lossy().into_owned())
}

/// Wrong use or a failed run, as the library tells them apart.
pub(super) fn failure(error: Error) -> Failure {
    if error.is_wrong_use() {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}
