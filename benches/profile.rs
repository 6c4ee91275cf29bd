//! Checks the predictions: profiles five models, plans, trains with the plans in turn, and prints predicted
//! over measured time and memory. See `benches/README.md`.
//!
//! Names of models as arguments select some of them.

mod profile_support;

use gpipe::partitioner::{Plan, ScheduleKind, simulate};
use gpipe::tch::Device;
use gpipe::{Pipeline, profile::Profiled};
use profile_support::{Measured, Runner, SUBJECTS, Subject, median, stage_costs};

const SCHEDULES: [ScheduleKind; 3] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
];
const MICROS: [usize; 3] = [2, 4, 8];
/// Profiles of each model, with training in between, so that a drift of the machine's speed affects both.
const PASSES: usize = 5;
/// Rounds over all cases in each pass, interleaved so that a disturbance affects all cases.
const ROUNDS: usize = 3;
/// Measured steps in each round.
const STEPS: usize = 2;
const DEVICES: [Device; 2] = [Device::Cpu; 2];
/// Relative error beyond which a prediction is marked.
const LIMIT: f64 = 0.1;

struct Case {
    plan: Plan,
    measured: Measured,
    /// Step times that the profiles predict, in microseconds.
    predicted: Vec<f64>,
}

impl Case {
    /// Trains the plan with a fresh pipeline: its placement in memory can make each step a tenth longer,
    /// independent of the plan.
    fn run(&mut self, subject: &Subject) -> anyhow::Result<()> {
        let pipe = Pipeline::builder(subject.spec.build())
            .devices(&DEVICES)
            .measure_memory(true)
            .plan(&self.plan)?
            .build()?;
        let mut runner = Runner::new(pipe);
        runner.run(subject, STEPS)?;
        self.measured.add(runner.measured);
        Ok(())
    }

    /// Predicts the plan's step time from a profile.
    fn predict(&mut self, measured: &Profiled) -> anyhow::Result<()> {
        let costs = stage_costs(&self.plan, measured, DEVICES.len())?;
        let simulation = simulate(&self.plan.generate()?, &costs);
        self.predicted.push(simulation.makespan().get());
        Ok(())
    }

    /// Prints a row; returns the number of its predictions beyond the limit.
    fn print(&self, name: &str) -> usize {
        let (predicted, measured_step) = (median(&self.predicted), self.measured.median());
        let best = self.measured.steps.iter().copied();
        let best = best.fold(f64::INFINITY, f64::min);
        let ratio = |predicted: u64, measured: u64| predicted as f64 / measured.max(1) as f64;
        let measured = self.measured.peaks(DEVICES.len());
        let peaks = measured.iter().zip(&self.plan.peak_bytes);
        let totals: Vec<f64> = peaks
            .map(|(measured, predicted)| ratio(predicted.get(), *measured))
            .collect();
        let step = predicted / measured_step;
        let judged = std::iter::once(step).chain(totals.iter().copied());
        let off = judged.filter(|ratio| (ratio - 1.0).abs() > LIMIT).count();
        println!(
            "{name:5}  {:6}  {}  {:8}  {:8.2} ms  {:8.2} ms  {step:.3}  {:.3}  {:.3}  {:.3}  {:6.2} MiB {:6.2} MiB{}",
            self.plan.schedule.name(),
            self.plan.micro_batches,
            format!("{:?}", self.plan.partition.balance()),
            predicted / 1e3,
            measured_step / 1e3,
            predicted / best,
            totals[0],
            totals[1],
            mib(measured[0]),
            mib(measured[1]),
            if off > 0 { "  <-- off" } else { "" },
        );
        off
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn cases(subject: &Subject, measured: &Profiled) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for kind in SCHEDULES {
        for micros in MICROS {
            let plan = subject.plan(measured, DEVICES.len(), kind, micros)?;
            cases.push(Case {
                plan,
                measured: Measured::default(),
                predicted: Vec::new(),
            });
        }
    }
    Ok(cases)
}

fn measure(subject: &Subject, passes: usize) -> anyhow::Result<usize> {
    let mut measured = subject.profile(DEVICES.len(), &MICROS)?;
    let mut cases = cases(subject, &measured)?;
    for pass in 0..passes {
        if pass > 0 {
            measured = subject.profile(DEVICES.len(), &MICROS)?;
        }
        for case in &mut cases {
            case.predict(&measured)?;
        }
        for _ in 0..ROUNDS {
            for case in &mut cases {
                case.run(subject)?;
            }
        }
    }
    let name = subject.spec.name();
    Ok(cases.iter().map(|case| case.print(name)).sum())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let passes = if measured { PASSES } else { 1 };
    let chosen = |name: &str| {
        let mut names = arguments
            .iter()
            .filter(|argument| !argument.starts_with('-'));
        names.clone().next().is_none() || names.any(|own| own == name)
    };
    println!(
        "predicted over measured (median and best of {} steps); peaks of everything on either\n\
         device\n",
        passes * ROUNDS * STEPS
    );
    println!(
        "model  schedule  m  cut  predicted  median  of median  of best  peak 0  peak 1  measured peaks"
    );
    let mut off = 0;
    for (name, sizes, batch) in SUBJECTS {
        if chosen(name) {
            let batch = if measured { batch } else { 8 };
            off += measure(&Subject::new(name, sizes, batch)?, passes)?;
        }
    }
    println!(
        "\n{off} predictions farther than {:.0} % from what was measured",
        100.0 * LIMIT
    );
    Ok(())
}
