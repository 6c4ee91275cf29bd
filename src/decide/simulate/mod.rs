//! `gpipe-rs simulate`: predicts a schedule's timeline, bubble and memory.

mod compare;
mod flag_times;
mod in_a_row;
mod memory;
mod options;
mod report;
mod risks;
mod sweep;
mod workload;

use gpipe_partitioner::{JitteredSteps, Micros, ScheduleKind, Shape, Simulation};

use super::slow_notice::SlowNotice;
use super::{Failure, input, output, say};

pub(super) use options::Args;

use compare::Cases;
use in_a_row::Row;
use options::{Format, Options};
use sweep::Swept;
use workload::{Predicted, Refusal};

/// Most stages times micro-batches: some ten million actions, a GiB.
const MAX_CELLS: usize = 1 << 22;
/// Most actions that are drawn one by one.
const MAX_DRAWN: usize = 500_000;

/// A schedule and its prediction.
#[derive(Debug)]
struct Case {
    /// Kind that was asked for.
    kind: ScheduleKind,
    chunks: usize,
    simulation: Simulation,
    /// Of a computed schedule: lower bound on the step of schedules of this shape, cut and memory
    /// that take micro-batches in order.
    lower_bound: Option<Micros>,
    /// Set if the simulation covers several steps in a row.
    row: Option<Row>,
    /// The same with random times, if asked for.
    jittered: Option<JitteredSteps>,
}

/// Simulations, independent of the output format.
enum Answer {
    One(Options, Box<Case>),
    Compared(Options, Cases),
    Swept(Swept),
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.check_files()?;
    let _notice =
        SlowNotice::begin("still simulating: schedules that are computed (auto) take longest");
    let answer = answer(args)?;
    if let Some(path) = &args.report {
        output::write(Some(path), &told(args, &answer, Format::Html)?)?;
    }
    let data = told(args, &answer, args.format())?;
    output::write(args.output.as_deref(), &data)
}

fn answer(args: &Args) -> Result<Answer, Failure> {
    if !args.sweep.is_empty() {
        return Ok(Answer::Swept(Swept::new(args)?));
    }
    let options = Options::new(args)?;
    options
        .workload
        .profile()
        .inspect(|own| input::say_doubts(own));
    Ok(match options.kind {
        Some(kind) if !args.compare => {
            let case = Case::new(&options, kind)?;
            Answer::One(options, Box::new(case))
        }
        _ => {
            let cases = Cases::new(&options)?;
            Answer::Compared(options, cases)
        }
    })
}

fn told(args: &Args, answer: &Answer, format: Format) -> Result<String, Failure> {
    match answer {
        Answer::One(options, case) => picture(args, options, case, format),
        Answer::Compared(options, cases) => Ok(cases.told(options, format)),
        Answer::Swept(swept) => swept.told(args, format),
    }
}

fn picture(args: &Args, options: &Options, case: &Case, format: Format) -> Result<String, Failure> {
    let timeline = &case.simulation.timeline;
    let drawn = matches!(format, Format::Svg | Format::Html | Format::Trace);
    let actions = timeline.spans().len();
    if drawn && actions > MAX_DRAWN {
        return Err(Failure::Usage(format!(
            "{actions} actions are too many for a picture, at most {MAX_DRAWN}: use --format text or json"
        )));
    }
    if drawn && let Some(why) = report::misfit(options, case) {
        say(&format!("note: {why}"));
    }
    let width = output::width(args.output.as_deref());
    Ok(report::render(options, case, (format, width)))
}

impl Case {
    /// Simulates one schedule with the chunks asked for, or with its usual ones; `auto` then tries
    /// one and two and takes the faster.
    fn new(options: &Options, kind: ScheduleKind) -> Result<Self, Refusal> {
        let chunks = match options.chunks {
            Some(chunks) => vec![chunks],
            None if kind == ScheduleKind::Auto => vec![1, 2],
            None => vec![kind.default_chunks()],
        };
        let mut best: Result<Self, Refusal> = Err(Refusal::default());
        for chunks in chunks {
            match (Self::with_chunks(options, kind, chunks), &best) {
                // All schedules that `auto` finds fit the memory.
                (Ok(case), Ok(other)) if case.step() >= other.step() => {}
                (Err(_), Ok(_)) => {}
                // Of two refusals, the first is about the simpler shape.
                (Err(_), Err(first)) if !first.is_empty() => {}
                (case, _) => best = case,
            }
        }
        best
    }

    fn with_chunks(options: &Options, kind: ScheduleKind, chunks: usize) -> Result<Self, Refusal> {
        let shape = Shape::new(options.devices, options.micro).with_chunks(chunks);
        let cells = shape.stages().checked_mul(shape.micro_batches);
        let cells = cells.and_then(|cells| cells.checked_mul(options.steps.unwrap_or(1)));
        if cells.is_none_or(|cells| cells > MAX_CELLS) {
            return Err(Refusal::new(format!(
                "{} stages times {} micro-batches are too many to simulate here: at most {MAX_CELLS}",
                shape.stages(),
                shape.micro_batches
            )));
        }
        let Predicted {
            simulation: step,
            lower_bound,
        } = options.workload.simulate(kind, shape)?;
        let (simulation, row) = match options.steps {
            None => (step, None),
            Some(steps) => {
                let (all, row) = Row::of(kind, &step, steps, options.limits.caps())?;
                (all, Some(row))
            }
        };
        // The bound holds for one step with barriers; several in a row may take less each.
        let lower_bound = lower_bound.filter(|_| row.is_none());
        let jittered = (options.jitter.as_ref()).map(|jitter| simulation.jittered(jitter));
        Ok(Self {
            kind,
            chunks,
            simulation,
            lower_bound,
            row,
            jittered,
        })
    }

    fn makespan(&self) -> Micros {
        self.simulation.makespan()
    }

    /// Returns the time of a step; with jitter, the mean.
    fn step(&self) -> Micros {
        let mean = self.jittered.as_ref().map(JitteredSteps::mean);
        mean.unwrap_or_else(|| self.makespan())
    }

    /// Returns the schedule's name; for `auto` with its choice.
    fn name(&self) -> String {
        let step = self.row.as_ref().map(|row| row.schedule.as_str());
        let schedule = step.unwrap_or_else(|| self.simulation.schedule().schedule().name());
        match (self.kind, schedule) {
            (ScheduleKind::Auto, "auto") => "auto (computed)".to_owned(),
            (ScheduleKind::Auto, name) => format!("auto (here {name})"),
            (kind, _) => kind.to_string(),
        }
    }
}
