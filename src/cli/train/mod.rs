//! `gpipe-rs train`: trains a model as a pipeline.

mod check;
mod config;
mod configured;
pub(super) mod few_samples;
mod from_plan;
mod job;
mod leader_choices;
mod memory_check;
mod missing_data;
mod optimizer;
mod options;
mod progress;
mod recipe;
mod resolved;
mod restarted;
mod resumed;
mod rows;
mod signals;
mod still_fits;
mod summary;
mod usual_values;

use std::sync::Arc;

use serde_json::Value;

use gpipe_partitioner::words::{count, quoted};

use super::feed::Source;
use super::generate::sample::{self, Beginning};
use super::trained::{SAMPLES, TOKENIZER, VOCABULARY};
use super::vocabulary::Vocabulary;
use super::{Failure, failure, say, world};
use gpipe_models::USUAL_IGNORED;
use gpipe_models::zoo::Zoo;
use gpipe_torch::world::World;
use gpipe_torch::{Optimizer, Pipeline, Precision};
use gpipe_train::{Ended, Outcome, Resume, RunFolder, TrainError, Trainer};

pub(super) use config::keys;
#[cfg(test)]
pub(super) use config::schema;
pub(super) use options::Args;
#[cfg(test)]
pub(super) use recipe::Recipe;

use job::Job;
use progress::Progress;
use resolved::Resolved;
use restarted::Begun;

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    let world = world::join()?;
    let args = Args {
        // Only one process prints.
        quiet: args.quiet || !world::leads(world.as_ref()),
        ..args.clone()
    };
    let trained = train(&args, zoo, world.as_ref());
    world::leave(world, trained)
}

fn train(args: &Args, zoo: &Zoo, world: Option<&Arc<World>>) -> Result<(), Failure> {
    let begun = Begun::find(args, world)?;
    // Reported before a model is made, as it needs none.
    if let (None, None) = (&begun, &args.resume)
        && world::leads(world)
    {
        RunFolder::check_new(args.out.as_deref()).map_err(failure)?;
    }
    let resume = match (&begun, &args.resume) {
        (Some(begun), _) => Some(resumed::open(&begun.folder, None, args, world)?),
        (None, Some(run)) => Some(resumed::open(run, args.out.clone(), args, world)?),
        (None, None) => None,
    };
    let below = match (&begun, &resume) {
        (Some(_), Some(resume)) => Begun::below(args, resume)?,
        (_, resume) => resume.as_ref().map(resumed::saved).transpose()?,
    };
    let mut job = match &resume {
        Some(resume) => {
            let mut args = args.clone();
            args.out = Some(resume.folder().to_owned());
            Job::over(below.as_ref(), &args, zoo, world)?
        }
        None => Job::over(None, args, zoo, world)?,
    };
    let mut pipe = job.pipeline()?;
    let resolved = Resolved::new(&job, &pipe);
    if let (Some(begun), Some(resume)) = (&begun, &resume) {
        begun.check(resume, &resolved.toml)?;
    }
    let goes_on = match &resume {
        Some(own) => resumed::check(own, &job, &resolved.toml)?,
        None => resumed::GoesOn::default(),
    };
    let resolved = resolved.after(&goes_on.changes);
    if let Some(finished) = (resume.as_ref()).filter(|own| own.step() >= job.recipe.steps as u64) {
        return is_finished(finished, &job);
    }
    if let Some(weights) = job.weights.take() {
        pipe.load(&weights.all).map_err(failure)?;
    }
    let done = resume.as_ref().map_or(0, |own| own.step() as usize);
    job.notes.extend(job.recipe.beyond_the_schedule(done));
    let progress = Progress::new(&job);
    progress.about(&job, &pipe);
    goes_on.notes.iter().for_each(|note| progress.say(note));
    let speak = progress.speaker();
    let mut optimizer = job.optimizer()?;
    let measuring = signals::Measuring::default();
    let hooks = (progress, measuring.clone());
    let trainer = trainer(&job, &mut pipe, &mut optimizer, &resolved, resume, hooks)?;
    if job.recipe.checkpoint_every > 0 {
        let folder = trainer.folder().path();
        speak(&format!(
            "run folder {}: if the run ends early, `{} train --resume {}` goes on with it",
            folder.display(),
            called(),
            quoted(folder)
        ));
    }
    let stop = trainer.stop().clone();
    let leads = world::leads(world);
    let (run, checkpoints) = (trainer.folder().path(), trainer.folder().checkpoints());
    let (run, saves) = (run.to_owned(), job.recipe.checkpoint_every > 0);
    let left = move || signals::left(&run, &checkpoints, saves);
    let asked = leads
        .then(|| signals::Listening::begin(speak, measuring, left))
        .transpose()
        .map_err(TrainError::Signals)?;
    let outcome = trainer.run().map_err(|error| explained(&job, error))?;
    drop(asked);
    if matches!(outcome.ended, Ended::Stopped { .. } | Ended::Unmeasured) {
        ended_early(&job, outcome)?;
        // Launchers treat any exit code but 0 as a failure: whoever requested the stop reports it.
        return match stop.signal().filter(|_| world.is_none()) {
            Some(signal) => Err(Failure::Asked(signal)),
            None => Ok(()),
        };
    }
    let beginning = beginning(&job)?.filter(|_| !job.args.json);
    let beginning = beginning.filter(|own| writes(&outcome, own.vocabulary.len()));
    let sample = beginning.map(|own| sample::generate(&mut pipe, &own, job.recipe.seed, &stop));
    // No signal can cut anything short from here on.
    drop(stop);
    if !world::leads(world) {
        return Ok(());
    }
    summary::print(&job, &outcome, sample.as_deref())?;
    let nothing = outcome
        .nothing_learnt()
        .map(|why| unlearnt(&job, &outcome, &why));
    outcome.files.map_err(failure)?;
    if let Some(why) = nothing {
        return Err(Failure::Run(anyhow::anyhow!(why)));
    }
    match outcome.held_out_loss {
        Some(loss) if !loss.is_finite() => Err(Failure::Run(match by_data(&job) {
            Some(why) => anyhow::anyhow!("the held-out loss is {loss} after the last step: {why}"),
            None => anyhow::anyhow!(
                "the held-out loss is {loss} after the last step: try a smaller --lr"
            ),
        })),
        _ => Ok(()),
    }
}

/// Reports that a run has nothing left to do; fails if it is past the requested steps.
fn is_finished(run: &Resume, job: &Job) -> Result<(), Failure> {
    let (path, steps) = (run.run().path().display(), job.recipe.steps);
    if run.step() > steps as u64 {
        return Err(Failure::Usage(format!(
            "{path}: it is at step {}, and --steps {steps} is fewer; to train on, give more",
            run.step()
        )));
    }
    if world::leads(job.world.as_ref()) {
        let steps = count(steps, "step");
        let stretched = summary::stretched(job);
        say(&format!(
            "{path}: all {steps} are done; to train on, give more with --steps N{stretched}"
        ));
    }
    Ok(())
}

/// Converts an error of a run; for a non-finite loss, adds possible causes in the data.
fn explained(job: &Job, error: TrainError) -> Failure {
    match &error {
        TrainError::Diverged { loss, step, .. } => match by_data(job) {
            Some(why) => Failure::Run(anyhow::anyhow!("the loss is {loss} at step {step}: {why}")),
            None if *step == 1 => Failure::Run(anyhow::anyhow!(
                "the loss is {loss} at step 1, before anything was learnt, so a smaller --lr would not \
                 help: scale the data (--normalise standard) or choose another --loss"
            )),
            None => failure(error),
        },
        _ => failure(error),
    }
}

/// Explains that nothing was learned, and what may help.
fn unlearnt(job: &Job, outcome: &Outcome, why: &str) -> String {
    let skipped = outcome.summary().skipped_updates > 0;
    let remedy = if skipped && job.recipe.precision == Precision::Fp16 {
        "try --precision bf16, or scale the data (--normalise standard); while the loss scale falls, \
         more steps may help, too"
    } else if skipped {
        "scale the data (--normalise standard), or try a smaller --lr"
    } else {
        "the outputs do not depend on the parameters where they are now; try another --seed, a smaller \
         --lr, or scale the data (--normalise standard)"
    };
    format!("{why}, so nothing was learnt: {remedy}")
}

/// Describes a non-finite sample, if there is one.
fn by_data(job: &Job) -> Option<String> {
    let Source::Samples { samples, .. } = &job.source else {
        return None;
    };
    let why = samples.not_finite()?;
    Some(format!(
        "{}: {why}: leave it out, or, where that is meant, as in a mask, try a smaller --lr",
        job.source.name()
    ))
}

/// Returns the prompt for a text at the end, if the vocabulary is known.
fn beginning(job: &Job) -> Result<Option<Beginning<'_>>, Failure> {
    let vocabulary = match (&job.tokenizer, job.source.text()) {
        (Some(tokenizer), _) => Vocabulary::Tokenizer(Arc::clone(tokenizer)),
        (None, Some((set, _))) => Vocabulary::of_characters(set.vocabulary()),
        (None, None) => return Ok(None),
    };
    let beginning = job.source.beginning().map_err(anyhow::Error::from)?;
    Ok(beginning.map(|(tokens, seq)| Beginning {
        spec: &job.chosen.spec,
        vocabulary,
        tokens,
        seq,
    }))
}

/// Whether the model writes better than random tokens: one that has learned only token frequencies
/// still has about this fraction of the loss of equally likely tokens.
fn writes(outcome: &Outcome, vocabulary: usize) -> bool {
    const KNOWS_NOTHING: f64 = 0.7;
    let last = outcome.records.last().map_or(f64::NAN, |own| own.loss);
    last < KNOWS_NOTHING * (vocabulary as f64).ln()
}

/// Makes the library's trainer for a job.
fn trainer<'a>(
    job: &'a Job,
    pipe: &'a mut Pipeline,
    optimizer: &'a mut Optimizer,
    resolved: &Resolved,
    resume: Option<Resume>,
    (progress, measuring): (Progress, signals::Measuring),
) -> Result<Trainer<'a>, Failure> {
    let (recipe, spec) = (&job.recipe, &job.chosen.spec);
    let (batch, steps, seed) = (recipe.batch, recipe.steps, recipe.seed);
    let feed = move |from: Option<&Value>| job.source.feed(spec, batch, steps, seed, from);
    let mut trainer = Trainer::builder(pipe, optimizer, feed, spec.loss())
        .steps(steps)
        .lr(job.rates)
        .clip(recipe.clip)
        .checkpoint_every(recipe.checkpoint_every)
        .checkpoint_keep(recipe.checkpoint_keep)
        .config(&resolved.toml)
        .tokens_per_sample(job.tokens)
        .samples_per_epoch(job.source.epoch())
        .flops(job.flops)
        .plan(job.plan.clone())
        .model_name(spec.name())
        .hook(progress)
        .hook(measuring)
        .stop_on_signals();
    trainer = match (resume, &job.args.out) {
        (Some(resume), _) => trainer.resume_opened(resume),
        (None, Some(out)) => trainer.folder(out),
        (None, None) => trainer,
    };
    if let Some(tokenizer) = &job.tokenizer {
        trainer = trainer.part(TOKENIZER, tokenizer.kept()?);
    } else if let Some((set, _)) = job.source.text() {
        trainer = trainer.part(VOCABULARY, set.vocabulary().iter().collect::<String>());
    }
    if let Some(kept) = job.source.kept() {
        trainer = trainer.part(SAMPLES, kept);
    }
    trainer = match (job.held_out(), recipe.eval_every) {
        (Some(held_out), 0) => trainer.held_out(held_out),
        (Some(held_out), every) => trainer
            .evaluate_every(every, move || held_out)
            .early_stopping(Some(recipe.early_stopping).filter(|&count| count > 0)),
        (None, _) => trainer,
    };
    if matches!(job.source, Source::Samples { .. }) {
        let ignored = spec.named_loss().and_then(|own| own.ignored());
        trainer = trainer.accuracy(ignored.unwrap_or(USUAL_IGNORED));
    }
    if let Some(path) = &job.args.trace {
        trainer = trainer.trace(path);
    }
    if let Some(path) = &job.args.report {
        trainer = trainer.report(path);
    }
    trainer.build().map_err(failure)
}

/// The program's own name, quoted for a shell.
pub(super) fn called() -> String {
    quoted(std::env::args_os().next().unwrap_or_default())
}

/// Says how to resume a run that a signal ended.
fn ended_early(job: &Job, outcome: Outcome) -> Result<(), Failure> {
    if !world::leads(job.world.as_ref()) {
        return Ok(());
    }
    let run = quoted(&outcome.folder);
    let stopped = match outcome.ended {
        Ended::Stopped { step } => Some(step),
        _ => None,
    };
    if job.args.json || stopped.is_none() {
        summary::print(job, &outcome, None)?;
    }
    outcome.files.map_err(failure)?;
    let (own, steps) = (called(), job.recipe.steps);
    let is_saved = job.recipe.checkpoint_every > 0;
    let nothing = "nothing was saved, as checkpoint.every is 0";
    let all_done = format!(
        "stopped before the held-out loss was measured; all {steps} are done, and",
        steps = count(steps, "step")
    );
    say(&match stopped {
        Some(step) if is_saved => format!(
            "stopped after step {step} of {steps} and saved; go on with: {own} train --resume {run}"
        ),
        Some(step) => format!("stopped after step {step} of {steps}; {nothing}"),
        None if is_saved => {
            format!("{all_done} they are saved; measure it with: {own} eval --run {run}")
        }
        None => format!("{all_done} {nothing}"),
    });
    Ok(())
}
