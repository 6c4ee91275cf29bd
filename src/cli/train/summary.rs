//! The summary of a run, as text or as JSON.

use std::path::{Path, PathBuf};

use gpipe_partitioner::words::{quoted, six_digits};
use serde::Serialize;
use tch::Device;

use super::job::Job;
use super::recipe::Recipe;
use super::{Failure, called};
use crate::feed::Source;
use crate::feed::learned::Learned;
use crate::model::flags::flag;
use crate::{output, titled_lines};
use gpipe_data::{Change, Diagnosis, Limit, Missing, Normalise};
use gpipe_torch::{Kernels, Precision, device_name};
use gpipe_train::metrics::is_host_bound;
use gpipe_train::{BEST, Outcome, Summary};

/// The JSON output.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    model: &'a str,
    data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_gpus: Option<String>,
    #[serde(flatten)]
    numbers: Summary,
}

/// Prints the summary of a run, with a `sample` of generated text.
pub(super) fn print(job: &Job, outcome: &Outcome, sample: Option<&str>) -> Result<(), Failure> {
    if !job.args.json {
        return output::print(&text(job, outcome, sample));
    }
    let printed = serde_json::to_string(&Printed {
        model: job.chosen.spec.name(),
        data: job.source.name(),
        simulated_gpus: job.simulated_gpus(),
        numbers: outcome.summary(),
    })?;
    output::print(&(printed + "\n"))
}

/// Lines of a quiet run: its results and its folder.
const QUIET: [&str; 6] = [
    "loss",
    "updates",
    "held-out loss",
    "accuracy",
    "lowest",
    "run folder",
];

fn text(job: &Job, outcome: &Outcome, sample: Option<&str>) -> String {
    let width = output::width(None);
    if job.args.quiet {
        let lines = lines(job, outcome).into_iter();
        let lines = lines.filter(|(title, _)| QUIET.contains(title));
        return lines
            .map(|(title, text)| titled_lines::line(title, &text, width))
            .collect();
    }
    let paragraph = |text: &str| output::wrapped(text, width) + "\n";
    let sample = sample.filter(|_| !outcome.has_diverged() && outcome.nothing_learnt().is_none());
    let sample = sample.map_or_else(String::new, |sample| format!("\n{}", paragraph(sample)));
    let whole = job.args.report.is_some();
    let last_step = outcome.comparison.as_ref();
    let comparison = last_step.filter(|_| whole);
    let comparison = comparison.map_or_else(String::new, |own| {
        format!("\nthe last step:\n\n{}", own.text(width))
    });
    // Any step of a short run may be one that another program disturbed, and short steps matter little.
    let sentence = last_step.filter(|_| !whole && !is_short(outcome));
    let sentence = sentence.map(|own| ("last step", own.brief()));
    let on_gpus = job.recipe.devices.iter().any(|device| device.is_cuda());
    let matters = |title: &str| match title {
        INPUT => whole || !is_short(outcome) || is_limit(outcome),
        LOADING => whole || (waits(outcome) && is_limit(outcome)),
        // CPU devices share the machine's memory, so no single one runs out.
        ACTIVATIONS | "" => whole || on_gpus,
        _ => true,
    };
    let mut lines = lines(job, outcome);
    let place = lines.iter().position(|(title, _)| *title == "bubble");
    let behind = place.map_or(lines.len(), |place| place + 1);
    lines.splice(behind..behind, sentence);
    let lines = lines.into_iter().chain(next(job, outcome));
    let lines = lines.filter(|(title, _)| matters(title));
    let lines = lines.map(|(title, text)| titled_lines::line(title, &text, width));
    format!("{sample}{comparison}\n{}", lines.collect::<String>())
}

/// Title of the lines of each device's activations; only the first line has it.
const ACTIVATIONS: &str = "activations";
/// Title of the loading times, shown if training waits for batches.
const LOADING: &str = "loading";

/// Title of the input's effect on speed.
const INPUT: &str = "input";

/// Whether the input is known to limit training.
fn is_limit(outcome: &Outcome) -> bool {
    let verdict = outcome.input.as_ref().map(|own| own.limit);
    verdict.map_or_else(|| waits(outcome), |limit| limit != Limit::Compute)
}

/// Whether the steps took too little time in total to matter.
fn is_short(outcome: &Outcome) -> bool {
    const MS: f64 = 5_000.0;
    outcome.records.iter().map(|own| own.step_ms).sum::<f64>() < MS
}

/// Whether training waits for its input more than noise explains.
fn waits(outcome: &Outcome) -> bool {
    const SHARE: f64 = 0.02;
    outcome.summary().input_wait > SHARE
}

/// Lines about reports and next steps.
fn next(job: &Job, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let report = match &job.args.report {
        Some(path) => path.display().to_string(),
        None => "`--report FILE.html` draws the last step, with all causes".to_owned(),
    };
    let mut lines = vec![("report", report)];
    if let Some(path) = &job.args.trace {
        let path = path.display();
        lines.push((
            "trace",
            format!("{path}: open it in https://ui.perfetto.dev"),
        ));
    }
    // Otherwise the error at the end says what is wrong and what to do.
    if job.recipe.checkpoint_every > 0 && outcome.nothing_learnt().is_none() {
        let run = quoted(&outcome.folder);
        let own = called();
        let stretched = stretched(job);
        let on = format!("{own} train --resume {run} --steps N{stretched}");
        if outcome.has_diverged() {
            const USUAL: f64 = 3e-3;
            let lower = (job.recipe.lr / 10.0).min(USUAL);
            let again = format!("the same with a smaller --lr, such as {lower}");
            lines.push(("next", again));
            return lines;
        }
        // The last weights may be worse than the best ones.
        let last = outcome.records.last().map_or(0, |own| own.step);
        let best = (outcome.best).filter(|own| own.step < last);
        let run = match best {
            Some(_) => format!("{run} --best"),
            None => run,
        };
        let verb = match job.source {
            _ if writes(job) => format!("{own} generate --run {run} --prompt TEXT`, or `{on}"),
            Source::Samples {
                samples: Learned::Pairs(_),
                ..
            } => format!("{own} predict --run {run} PATH`, or `{on}"),
            Source::Samples { .. } => format!("{own} eval --run {run}`, or `{on}"),
            _ => on,
        };
        lines.push(("next", format!("`{verb}`")));
    }
    lines
}

/// Whether the model generates text: its vocabulary is known.
fn writes(job: &Job) -> bool {
    match job.source {
        Source::Text { .. } => true,
        Source::Tokens { .. } => job.tokenizer.is_some(),
        Source::Samples { .. } | Source::Synthetic(_) => false,
    }
}

/// Flags that extend the learning-rate schedule to further steps, if it has ended.
pub(super) fn stretched(job: &Job) -> &'static str {
    if job.recipe.schedule_end().is_some() {
        " --set lr.steps=N"
    } else {
        ""
    }
}

/// The error of a regression with scaled targets, in the data's units.
fn error(job: &Job, outcome: &Outcome) -> String {
    let Source::Samples { samples, .. } = &job.source else {
        return String::new();
    };
    match (samples.target_scale(), outcome.summary().held_out_loss) {
        (Some((_, std)), Some(mse)) => {
            let rmse = six_digits(mse.sqrt() * std);
            format!(", a root mean square error of {rmse} in the units of the data")
        }
        _ => String::new(),
    }
}

/// The command that profiles the run's model.
fn profile_command(recipe: &Recipe) -> String {
    let path = |own: &PathBuf| quoted(own);
    let sizes = recipe
        .sizes
        .iter()
        .map(|(size, value)| (flag(size), value.clone()));
    // Defaults are omitted.
    let devices = all_devices(recipe);
    // Layers are measured on the devices of one replica.
    let devices = &devices[..devices.len() / recipe.replicas.max(1)];
    let names: Vec<String> = devices.iter().map(|own| device_name(*own)).collect();
    let usual = devices == [Device::Cpu; 2];
    let precision =
        (recipe.precision != Precision::default()).then(|| recipe.precision.to_string());
    // `profile` also selects the faster kernels by default.
    let kernels = recipe.kernels.filter(|own| *own != Kernels::auto());
    let kernels = kernels.map(|own| own.to_string());
    let threads = recipe.threads_per_stage.map(|own| own.to_string());
    let scaled = recipe.normalise != Normalise::Auto;
    let dropped = (!recipe.drop_columns.is_empty()).then(|| recipe.drop_columns.join(","));
    let others = [
        ("--loss", recipe.loss.map(|own| own.to_string())),
        ("--data", recipe.data.as_ref().map(path)),
        ("--target", recipe.target.as_ref().map(quoted)),
        ("--drop-columns", dropped.map(quoted)),
        (
            "--missing",
            (recipe.missing != Missing::Refuse).then(|| recipe.missing.to_string()),
        ),
        ("--normalise", scaled.then(|| recipe.normalise.to_string())),
        ("--devices", (!usual).then(|| names.join(","))),
        ("--precision", precision),
        ("--kernels", kernels),
        ("--threads-per-stage", threads),
        ("--batch", Some(recipe.batch.to_string())),
    ];
    let others = others
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let model = ("--model".to_owned(), quoted(&recipe.model));
    let all = std::iter::once(model).chain(sizes).chain(others);
    let all = all.map(|(name, value)| format!(" {name} {value}"));
    format!("profile{}", all.collect::<String>())
}

/// Devices of all processes, as the plan needs.
fn all_devices(recipe: &Recipe) -> Vec<Device> {
    recipe.devices.repeat(recipe.processes.max(1))
}

/// The commands that make a plan for the run's setup.
fn plan_commands(recipe: &Recipe) -> String {
    let own = called();
    let profile = format!("{own} {}", profile_command(recipe));
    if recipe.replicas == 1 {
        return format!("`{profile} --plan plan.json` cuts");
    }
    // A plan written by `profile` is for a single replica.
    format!(
        "`{profile} -o profile.json` and `{own} plan --profile profile.json --devices {} --replicas {} --tree {} \
         --batch {} -o plan.json` cut",
        all_devices(recipe).len(),
        recipe.replicas,
        recipe.tree,
        recipe.batch
    )
}

/// Advice for an imbalanced cut.
pub(super) fn another_cut(job: &Job) -> String {
    if job.plan.is_some() {
        return "; the plan was made from other times than these: profile again".to_owned();
    }
    let commands = plan_commands(&job.recipe);
    format!("; {commands} by time, and its last line is the command that trains so")
}

/// Lines about the whole run, with advice.
fn lines(job: &Job, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let mut lines = outcome.lines();
    for (title, text) in &mut lines {
        match (*title, &job.plan) {
            ("updates", _) => *text += &of_warm_up(job, outcome),
            ("held-out loss", _) if job.source.text().is_some() => *text += " per character",
            ("held-out loss", _) if matches!(job.source, Source::Samples { .. }) => {
                *text += &error(job, outcome);
            }
            ("held-out loss", _) => *text += " per token",
            ("input", _) => {
                let input = outcome.input.as_ref();
                *text += &input.map_or_else(String::new, |input| in_flags(input, &job.recipe));
            }
            ("lowest", _) if job.recipe.checkpoint_every > 0 => {
                let (run, own) = (outcome.folder.display(), quoted(&outcome.folder));
                *text = format!("{text}; its checkpoint is {run}/{BEST} (--run {own} --best)");
            }
            ("plan", _) if job.simulated_gpus().is_none() && is_far(&outcome.summary()) => {
                *text += PROFILE_AGAIN
            }
            ("cut", _) => *text += &another_cut(job),
            _ => {}
        }
    }
    if let Some(verdict) = host_bound(outcome.summary().host_share) {
        let host = lines.iter().position(|(title, _)| *title == "host");
        lines.insert(host.map_or(0, |host| host + 1), ("limit", verdict));
    }
    lines
}

/// Returns the verdict if asynchronous devices wait for the host threads that launch their work, which
/// were busy for this share of their time.
fn host_bound(host_share: Option<f64>) -> Option<String> {
    let share = host_share.filter(|share| is_host_bound(*share))?;
    Some(format!(
        "host-bound: telling the devices what to do takes {:.0} % of the time that they take to do \
         it; give them more at once: larger micro-batches, or fewer of them",
        100.0 * share
    ))
}

/// Notes that skipped updates also count as warm-up steps.
fn of_warm_up(job: &Job, outcome: &Outcome) -> String {
    let warm_up = job.recipe.warm_up_steps() as u64;
    let steps = outcome.records.iter().filter(|own| own.step <= warm_up);
    let (skipped, made): (Vec<_>, Vec<_>) = steps.partition(|own| own.skipped);
    if skipped.is_empty() {
        return String::new();
    }
    format!(
        "; the warm-up counts steps, not updates: {} of its {warm_up} steps made one",
        made.len()
    )
}

/// The flag that helps the input most, if any.
fn in_flags(input: &Diagnosis, recipe: &Recipe) -> String {
    let best = input.remedies.first().map(|remedy| remedy.change);
    match best {
        Some(Change::Workers(workers)) => format!(": --workers {workers}"),
        Some(Change::Prefetch(batches)) => format!(": --prefetch {batches}"),
        Some(Change::IntraOp(threads)) => format!(": --threads-per-stage {threads}"),
        Some(Change::Cache) if !is_arrays(recipe.data.as_deref()) => {
            ": save them once as arrays (.npz, .safetensors), as they come out of it".to_owned()
        }
        _ => String::new(),
    }
}

/// Whether the data is stored as arrays.
fn is_arrays(data: Option<&Path>) -> bool {
    let ending = data.and_then(Path::extension);
    ending.is_some_and(|own| {
        ["npy", "npz", "safetensors"]
            .iter()
            .any(|known| own == *known)
    })
}

/// Relative deviation above which a plan's profile is not valid for this machine: a quarter, more than
/// profiles of an idle machine differ from each other.
const FAR: f64 = 0.25;
/// Advice for that case.
const PROFILE_AGAIN: &str = "; more than 25 % off: profile again on this machine, with the same \
                             --devices and --threads-per-stage and nothing else running";

/// Whether step times deviate from the plan for a reason other than being very short.
fn is_far(own: &Summary) -> bool {
    let planned = own.planned_ms.filter(|planned| *planned > 0.0);
    planned.is_some_and(|planned| {
        let beyond = own.makespan_ms_median / planned - 1.0;
        beyond.abs() > FAR && !(beyond > 0.0 && own.is_short())
    })
}
