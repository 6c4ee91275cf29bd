//! Formats a profile as text and as JSON.

use std::fmt::Write as _;

use gpipe_partitioner::render::{PageError, ProfilePage};
use gpipe_partitioner::words::count;
use gpipe_partitioner::{LayerCost, Micros, Partition, Plan, PlanOptions, StageId};
use serde_json::{Value, json};

use crate::output::{self, thousands};
use crate::plan::limit::{self, Input};
use crate::plan::report as plan_report;
use crate::plan::runners_up::Shown;
use crate::table::{Align, Table};
use crate::titled_lines::{self, Said};
use gpipe_data::{Diagnosis, InputMeasures, Limit};
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::{ProfileOptions, Profiled};

/// Measured loading time of a batch.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) data: String,
    /// Samples of the batch.
    pub(super) batch: usize,
    pub(super) each: Micros,
    /// Time of each loading phase; `None` for made-up data.
    pub(super) phases: Option<InputMeasures>,
}

impl Loading {
    /// Diagnoses what limits training with this plan and loader; `None` for made-up data, which takes
    /// no time.
    pub(super) fn beside(&self, measured: &Profiled, plan: &Plan) -> Option<Diagnosis> {
        let step = plan.step.get() / 1e3;
        let on_cpu = measured.profile.device() == "cpu";
        let busy = (1.0 - plan.bubble_fraction) * plan.devices() as f64;
        let cores = gpipe_torch::cores() as f64;
        let training = if on_cpu { step * busy.min(cores) } else { 0.0 };
        let phases = self.phases.as_ref()?;
        let mut expected = phases.beside(step, training);
        expected.intra_op = 1;
        Some(Diagnosis::of(&expected))
    }
}

/// Converts a diagnosis for the sentence about the plan's limit.
pub(super) fn input(diagnosis: &Diagnosis) -> Option<Input> {
    Some(Input {
        period: Micros::new(diagnosis.measures.period_ms * 1e3).ok()?,
        limits: diagnosis.limit != Limit::Compute,
        verdict: diagnosis.to_string(),
    })
}

/// Formats layers with bars and cuts, the plan for mini-batches of `samples`, and notes about it.
pub(super) fn text(
    measured: &Profiled,
    (plan, samples): (&Plan, usize),
    (loading, diagnosis): (Option<&Loading>, Option<&Diagnosis>),
    (said, limit): (&[Said], &str),
) -> String {
    let (profile, width) = (&measured.profile, output::width(None));
    let title = format!(
        "{} on {}, times of a micro-batch of {}, the plan's ({})",
        count(profile.layers().len(), "layer"),
        profile.device(),
        count(plan.micro_batch_size, "sample"),
        profile.measured().unwrap_or("measured"),
    );
    let mut text = format!("{}\n\n", output::wrapped(&title, width));
    text.push_str(&layers(measured, plan, width));
    let is_limit = limit.starts_with(limit::INPUT_BOUND);
    let beside = beside(measured, loading, (diagnosis, is_limit));
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n{}\n{}\n{}",
        titled_lines::lines(&beside, width),
        plan_report::text((plan, samples), profile, width, Shown::Few),
        titled_lines::lines(said, width)
    );
    text
}

/// Lines about measurements other than layers.
fn beside(
    measured: &Profiled,
    loading: Option<&Loading>,
    (diagnosis, is_limit): (Option<&Diagnosis>, bool),
) -> Vec<Said> {
    let link = measured.link.map(|link| {
        let rate = link.bandwidth.map_or_else(
            || "nothing is copied".to_owned(),
            |bytes| format!("{bytes}/s"),
        );
        Said::new(
            "hand-over",
            format!("{} to the next device, {rate}", link.latency),
        )
    });
    let host = measured.profile.host_link();
    let host = host.map(|link| Said::new("host", format!("to its memory and back: {link}")));
    let loading = loading.map(|own| {
        let samples = count(own.batch, "sample");
        Said::new(
            "loading",
            format!("{} for {samples} from {}", own.each, own.data),
        )
    });
    // If the input is the limit, the line below the plan says so.
    let input = diagnosis.filter(|_| !is_limit).map(|own| {
        let text = format!("beside the step: {own}; a batch takes {}", own.phases());
        Said::new("input", text)
    });
    [link, host, loading, input].into_iter().flatten().collect()
}

/// Fewest measurements with a meaningful spread.
const FEWEST: usize = 3;

/// Bar widths and omitted columns, from the widest terminal to the narrowest; the first that fits is
/// used.
const LAYOUTS: [(usize, &[&str]); 7] = [
    (32, &[]),
    (16, &[]),
    (8, &[]),
    (8, &["bytes kept"]),
    (8, &["bytes kept", "output"]),
    (8, &["bytes kept", "output", "parameters"]),
    (
        8,
        &["bytes kept", "output", "parameters", "input", "weight"],
    ),
];

fn layers(measured: &Profiled, plan: &Plan, width: usize) -> String {
    let mut table = String::new();
    for (bars, left_out) in LAYOUTS {
        table = layer_table(measured, plan.micro_batch_size, bars, left_out);
        if table.lines().all(|line| line.chars().count() <= width) {
            break;
        }
    }
    with_cuts(&table, plan, width)
}

fn layer_table(measured: &Profiled, samples: usize, bars: usize, left_out: &[&str]) -> String {
    let costs = measured.profile.costs(samples);
    let time = |layer: &LayerCost| layer.forward.get() + layer.backward.get();
    let most = costs.iter().map(time).fold(0.0, f64::max);
    let bytes = |layer: &LayerCost| layer.activations.get();
    let widest = costs.iter().map(bytes).max().unwrap_or(0);
    let columns = [
        ("layer", Align::Left),
        ("forward", Align::Right),
        ("backward", Align::Right),
        ("input", Align::Right),
        ("weight", Align::Right),
        ("+-", Align::Right),
        ("time", Align::Left),
        ("parameters", Align::Right),
        ("output", Align::Right),
        ("kept", Align::Right),
        ("bytes kept", Align::Left),
    ];
    let stays = |column: &usize| !left_out.contains(&columns[*column].0);
    let shown: Vec<usize> = (0..columns.len()).filter(stays).collect();
    let mut table = Table::new(&shown.iter().map(|&c| columns[c]).collect::<Vec<_>>());
    let names = measured.profile.layers().iter().map(|own| &own.name);
    for ((name, layer), spread) in names.zip(&costs).zip(&measured.spread) {
        let noise = spread.forward.max(spread.backward) / 2.0;
        let cells = [
            name.clone(),
            layer.forward.to_string(),
            layer.backward.to_string(),
            layer.input.to_string(),
            layer.weight.to_string(),
            match spread.repeats {
                0..FEWEST => "-".to_owned(),
                _ => format!("{:.0} %", 100.0 * noise),
            },
            bar(time(layer), most, bars),
            layer.parameters.to_string(),
            layer.output.to_string(),
            layer.activations.to_string(),
            bar(bytes(layer) as f64, widest as f64, bars),
        ];
        table.row(shown.iter().map(|&column| cells[column].clone()));
    }
    table.render()
}

/// Inserts a line before each stage.
fn with_cuts(table: &str, plan: &Plan, width: usize) -> String {
    let cut = cuts(&plan.partition);
    let wide = table.lines().map(|l| l.chars().count()).max().unwrap_or(0);
    let width = wide.min(width);
    let mut text = String::new();
    for (number, line) in table.lines().enumerate() {
        if let Some(stage) = number.checked_sub(1).and_then(&cut) {
            text.push_str(&border(stage, plan, width));
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Maps a layer to the stage that begins there, if any.
fn cuts(partition: &Partition) -> impl Fn(usize) -> Option<StageId> {
    let starts: Vec<usize> = (0..partition.stages())
        .map(|stage| partition.range(StageId(stage)).start)
        .collect();
    move |layer| starts.iter().position(|&start| start == layer).map(StageId)
}

fn border(stage: StageId, plan: &Plan, width: usize) -> String {
    let again = plan.recompute.get(stage.index()) == Some(&true);
    let again = if again { ", recomputes" } else { "" };
    let device = plan.placement[stage.index()];
    let title = format!("-- stage {stage} on device {device}{again} ");
    format!("{title:-<width$}\n")
}

/// Draws a bar of at most `columns`.
fn bar(value: f64, most: f64, columns: usize) -> String {
    let share = if most > 0.0 { value / most } else { 0.0 };
    let full = (share * columns as f64).round() as usize;
    "#".repeat(full.min(columns))
}

/// Returns one JSON object: the contents of both files, and the rest.
pub(super) fn json(
    measured: &Profiled,
    plan: &Plan,
    (loading, diagnosis): (Option<&Loading>, Option<&Diagnosis>),
    limit: &str,
) -> Result<Value, serde_json::Error> {
    let input = loading.map(|loading| {
        json!({
            "data": loading.data,
            "batch": loading.batch,
            "batch_us": loading.each,
            "diagnosis": diagnosis,
        })
    });
    let spread = measured.spread.iter().map(|layer| {
        json!({
            "layer": layer.layer,
            "repeats": layer.repeats,
            "forward_spread": layer.forward,
            "backward_spread": layer.backward,
            "after_input_bytes": layer.after_input,
        })
    });
    let link = measured.link.map(|link| {
        json!({
            "latency_us": link.latency,
            "bytes_per_second": link.bandwidth,
        })
    });
    let doubts = measured.doubts.iter().map(ToString::to_string);
    Ok(json!({
        "profile": serde_json::from_str::<Value>(&measured.profile.to_json())?,
        "plan": serde_json::from_str::<Value>(&plan.to_json())?,
        "spread": spread.collect::<Vec<_>>(),
        "link": link,
        "input": input,
        "doubts": doubts.collect::<Vec<_>>(),
        "limit": limit,
    }))
}

/// The line shown at the start: the model may be too large for the user's patience or memory.
pub(super) fn beginning(spec: &ModelSpec, options: &ProfileOptions) -> anyhow::Result<String> {
    let (parameters, layers) = (spec.parameters()?, spec.build().len());
    let sizes = &options.sizes;
    let seconds = (options.budget.as_secs_f64() * (layers * sizes.len()) as f64).ceil();
    let listed: Vec<String> = sizes.iter().map(usize::to_string).collect();
    Ok(format!(
        "measuring {}: {} parameters in {}, micro-batches of {} samples; this takes at least \
         {seconds} s, and minutes if one pass takes seconds",
        spec.name(),
        thousands(parameters),
        count(layers, "layer"),
        listed.join(", "),
    ))
}

/// Makes the page about a model, its plan, what limits the plan, and the reasons.
pub(super) fn page(
    spec: &ModelSpec,
    measured: &Profiled,
    plan: &Plan,
    options: &PlanOptions,
    (limit, choices): (&str, &[Said]),
) -> Result<String, PageError> {
    let doubts = measured.doubts.iter().map(ToString::to_string);
    let page = ProfilePage::new(spec.name(), &measured.profile, plan, options)?
        .with_about(spec.settings().to_string())
        .with_limit(limit)
        .with_notes(choices.iter().map(Said::sentence).collect())
        .with_doubts(doubts.collect());
    Ok(page.html())
}
