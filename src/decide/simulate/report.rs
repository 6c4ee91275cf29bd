//! One simulation as text, picture or numbers.

use gpipe_partitioner::render::SimulationPage;
use gpipe_partitioner::simulate::SensitivityTarget;
use gpipe_partitioner::words::{count, two_decimals};
use gpipe_partitioner::{Bytes, DeviceId, Micros, Nodes, Span, Timeline, VOTES, render};
use serde_json::{Value, json};

use super::super::{
    micro_batch_counts, output,
    table::{Align, Table},
    titled_lines::{self, Said},
};
use super::options::{Format, Options};
use super::{Case, Row, risks};

/// Most actions for which advice is computed.
const MAX_HELPED: usize = 20_000;

/// Renders the simulation in a format; `width` is that of lines of text.
pub(super) fn render(options: &Options, case: &Case, (format, width): (Format, usize)) -> String {
    let timeline = &case.simulation.timeline;
    let steps = case.row.as_ref().map_or(1, |row| row.steps);
    match format {
        Format::Text => text(options, case, width),
        Format::Svg => render::in_a_row_svg(timeline, steps, &headline(options, case)),
        Format::Html => page(options, case),
        Format::Trace => render::chrome_trace(timeline),
        Format::Json => output::json(&numbers(options, case)),
    }
}

fn headline(options: &Options, case: &Case) -> String {
    let schedule = case.simulation.schedule().schedule();
    let chunks = match case.chunks {
        1 => String::new(),
        chunks => format!(" x {chunks} chunks"),
    };
    let (replicas, nodes, each) = spread(options);
    let steps = case.row.as_ref().map_or(1, |row| row.steps);
    let row = match &case.row {
        Some(_) => format!(", {} in a row", count(steps, "step")),
        None => String::new(),
    };
    format!(
        "{}: {replicas}{}{chunks}{nodes}, {}{each}{}{row}",
        case.name(),
        count(schedule.devices(), "device"),
        count(schedule.micro_batches() / steps, "micro-batch"),
        samples(options)
    )
}

/// Returns the texts for replicas, before the devices, and for nodes, after them, and the word `each`
/// for micro-batches of several replicas.
pub(super) fn spread(options: &Options) -> (String, String, &'static str) {
    let (replicas, each) = match options.machine.replicas() {
        1 => (String::new(), ""),
        replicas => (format!("{replicas} replicas of "), " each"),
    };
    let nodes = match options.machine.nodes().map_or(1, Nodes::count) {
        1 => String::new(),
        nodes => format!(" on {nodes} nodes"),
    };
    (replicas, nodes, each)
}

/// Returns ` of 8 samples`, if a profile gives the size of a micro-batch.
pub(super) fn samples(options: &Options) -> String {
    let samples = options.workload.samples();
    samples.map_or_else(String::new, |samples| {
        format!(" of {}", count(samples, "sample"))
    })
}

fn text(options: &Options, case: &Case, width: usize) -> String {
    let mut text = headline(options, case);
    text.push('\n');
    text.push_str(&render::text(&case.simulation.timeline, width));
    if is_narrow(&case.simulation.timeline, width) {
        let tip =
            "names do not fit these columns: write a page with -o FILE.html, where you can zoom in";
        text.push_str(&output::wrapped(tip, width));
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&devices(case, options.workload.knows_memory()));
    let mut all: Vec<Said> = fits(options, case).into_iter().collect();
    all.extend(notes(options, case));
    all.push(options.workload.said());
    text.push('\n');
    text.push_str(&titled_lines::lines(&all, width));
    text
}

/// Returns an HTML page with the content of the text.
fn page(options: &Options, case: &Case) -> String {
    let steps = case.row.as_ref().map_or(1, |row| row.steps);
    let page = SimulationPage::new(&case.simulation, &headline(options, case))
        .with_steps(steps)
        .with_limits(options.limits.caps());
    let fits = options.limits.sentence(&case.simulation);
    let notes = notes(options, case);
    let mut notes: Vec<String> = notes.iter().map(Said::sentence).collect();
    let mut warnings = Vec::new();
    notes.push(options.workload.words());
    match options.limits.excess(&case.simulation) {
        Some(_) => warnings.extend(fits),
        None => notes.splice(..0, fits).for_each(drop),
    }
    page.with_notes(notes).with_warnings(warnings).html()
}

/// Returns whether it fits, if asked for.
fn fits(options: &Options, case: &Case) -> Option<Said> {
    let sentence = options.limits.sentence(&case.simulation)?;
    Some(Said::new("memory", sentence))
}

/// Returns a note if the schedule does not fit, for outputs that do not show it.
pub(super) fn misfit(options: &Options, case: &Case) -> Option<String> {
    options.limits.excess(&case.simulation)?;
    options.limits.sentence(&case.simulation)
}

/// Returns notes that explain the numbers.
fn notes(options: &Options, case: &Case) -> Vec<Said> {
    let timeline = &case.simulation.timeline;
    let jitter = options.jitter.as_ref().zip(case.jittered.as_ref());
    let failures = options.failures.as_ref();
    let helps = options.workload.is_uneven().then(|| advice(case));
    let notes = [
        micro_batch_counts::sentence(case.simulation.schedule().schedule()).map(of("memory")),
        case.row.as_ref().map(Row::words).map(of("in a row")),
        titled_lines::exchange(timeline),
        titled_lines::agreement(options.workload.machine(), timeline),
        bound(case).map(of("bound")),
        jitter
            .map(|(jitter, steps)| risks::jitter_sentence(jitter, steps))
            .map(of("jitter")),
        failures
            .and_then(|own| risks::failure_sentence(own, case.step()))
            .map(of("failures")),
        helps.flatten().map(of("helps most")),
    ];
    notes.into_iter().flatten().collect()
}

/// Returns a function that puts a title before a sentence.
fn of(title: &'static str) -> impl Fn(String) -> Said {
    move |text| Said::new(title, text)
}

/// Whether an action has less than two columns: one for its letter and one for its sign.
fn is_narrow(timeline: &Timeline, width: usize) -> bool {
    let times = timeline.spans().iter().map(Span::duration);
    let shortest = times.filter(|time| *time > Micros::ZERO).min();
    let columns = width.saturating_sub(8) as f64;
    shortest.is_some_and(|time| time.get() / timeline.makespan().get() * columns < 2.0)
}

/// Says how much another schedule could save at most against a computed one.
fn bound(case: &Case) -> Option<String> {
    let bound = case.lower_bound?;
    Some(if gap(case, bound) == 0.0 {
        "no schedule that takes micro-batches in order is faster here".to_owned()
    } else {
        format!(
            "lower bound {bound}: another schedule that takes micro-batches in order could save at most \
             {:.1} % of this step",
            100.0 * (1.0 - bound.get() / case.makespan().get())
        )
    })
}

fn gap(case: &Case, bound: Micros) -> f64 {
    case.makespan().get() / bound.get().max(f64::MIN_POSITIVE) - 1.0
}

fn devices(case: &Case, knows_memory: bool) -> String {
    let simulation = &case.simulation;
    let names = ["device", "busy", "idle", "in flight", "peak memory"];
    let names = &names[..if knows_memory { 5 } else { 4 }];
    let columns: Vec<_> = names.iter().map(|name| (*name, Align::Right)).collect();
    let mut table = Table::new(&columns);
    let peaks = simulation.peak_bytes();
    let all = || (0..peaks.len()).map(DeviceId);
    let timeline = &simulation.timeline;
    let most = |times: Option<Micros>| times.unwrap_or(Micros::ZERO);
    let busiest = most(all().map(|device| timeline.busy(device)).max());
    let idlest = most(all().map(|device| timeline.idle(device)).max());
    for (device, peak) in all().zip(&peaks) {
        let cells = [
            device.to_string(),
            timeline.busy(device).in_column(busiest),
            timeline.idle(device).in_column(idlest),
            two_decimals(simulation.schedule().peak_in_flight_on(device)),
            memory(*peak),
        ];
        table.row(cells.into_iter().take(columns.len()));
    }
    table.render()
}

/// Formats an amount of memory, `-` if none is known.
pub(super) fn memory(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO {
        "-".to_owned()
    } else {
        bytes.to_string()
    }
}

/// Returns advice on the stage whose shrinking would help most, if one stands out.
fn advice(case: &Case) -> Option<String> {
    if case.simulation.timeline.spans().len() > MAX_HELPED {
        return None;
    }
    let best = case.simulation.sensitivities().into_iter().next()?;
    // A stage that must shrink to nothing before it helps is no advice.
    if best.shrink > 0.995 {
        return None;
    }
    let percent = 100.0 * best.shrink;
    let what = match best.target {
        SensitivityTarget::Stage(stage) => format!(
            "stage {stage} taking {percent:.0} % less time ({} less for a micro-batch)",
            best.amount
        ),
        SensitivityTarget::Transfers => format!("all transfers taking {percent:.0} % less time"),
        SensitivityTarget::Exchange => {
            format!("the all-reduce of gradients taking {percent:.0} % less time")
        }
    };
    Some(format!("{what} makes the step {} shorter", best.saves))
}

/// Returns the numbers of a simulation. `peak_in_flight` is in device-micro-batches: one on one of v
/// chunks counts 1/v. Lists have an entry for each device of a replica; `recomputed` and `offloaded`,
/// if any, one for each stage: the micro-batches that have an individual recompute or offload.
pub(super) fn numbers(options: &Options, case: &Case) -> Value {
    let simulation = &case.simulation;
    let schedule = simulation.schedule();
    let devices = 0..schedule.schedule().devices();
    let in_flight = devices.map(|device| schedule.peak_in_flight_on(DeviceId(device)));
    let replicas = options.machine.replicas();
    let mut numbers = json!({
        "schedule": case.kind.name(),
        "devices": schedule.schedule().devices() * replicas,
        "chunks": case.chunks,
        "micro_batches": schedule.schedule().micro_batches() * replicas,
        "makespan_us": simulation.makespan(),
        "bubble_fraction": simulation.timeline.bubble_fraction(),
        "idle_us": simulation.idle(),
        "peak_in_flight": in_flight.collect::<Vec<f64>>(),
        "peak_bytes": simulation.peak_bytes(),
    });
    options.limits.add_to(&mut numbers, simulation);
    if let Some(samples) = options.workload.samples() {
        numbers["micro_batch_size"] = json!(samples);
    }
    let recomputed = schedule.schedule().recompute_counts();
    if recomputed.iter().any(|&count| count > 0) {
        numbers["recomputed"] = json!(recomputed);
    }
    let offloaded = schedule.schedule().offload_counts();
    if offloaded.iter().any(|&count| count > 0) {
        numbers["offloaded"] = json!(offloaded);
    }
    if let Some(bound) = case.lower_bound {
        numbers["lower_bound_us"] = json!(bound);
        numbers["gap"] = json!(gap(case, bound));
    }
    if let Some((jitter, steps)) = options.jitter.as_ref().zip(case.jittered.as_ref()) {
        numbers["jitter"] = risks::jitter_numbers(jitter, steps);
    }
    if let Some(failures) = &options.failures {
        numbers["failures"] = risks::failure_numbers(failures, case.step());
    }
    if let Some(row) = &case.row {
        numbers["steps"] = json!(row.steps);
        numbers["steady_bubble_fraction"] = json!(row.steady_bubble);
        numbers["step_us"] = json!(row.step);
        numbers["barrier_step_us"] = json!(row.with_barrier);
    }
    if replicas > 1 {
        numbers["replicas"] = json!(replicas);
        numbers["exposed_us"] = json!(simulation.timeline.exposed());
    }
    if options.machine.processes() > 1 {
        let agreement = options
            .workload
            .machine()
            .agreement(&simulation.timeline, VOTES);
        numbers["processes"] = json!(options.machine.processes());
        numbers["agreement_us"] = json!(agreement);
    }
    if let Some(nodes) = options.machine.nodes() {
        numbers["nodes"] = json!(nodes.devices());
    }
    numbers
}
