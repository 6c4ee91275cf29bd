//! Does the prediction hold: profiles five models, plans, trains by the plans in turn,
//! and prints predicted over measured for time and memory. See `benches/README.md`.
//!
//! Names of models as arguments choose some of them.

mod profile_support;

use gpipe::Pipeline;
use gpipe::partitioner::{Plan, ScheduleKind};
use gpipe::tch::Device;
use profile_support::{Fixed, Runner, SUBJECTS, Subject};

const SCHEDULES: [ScheduleKind; 3] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
];
const MICROS: [usize; 3] = [2, 4, 8];
/// Passes over all cases, one after the other, so that what disturbs disturbs all.
const ROUNDS: usize = 12;
/// Steps that count in each pass.
const STEPS: usize = 2;
const DEVICES: [Device; 2] = [Device::Cpu; 2];
/// Farther from the measured number than this share, a prediction is marked.
const LIMIT: f64 = 0.1;

struct Case {
    plan: Plan,
    fixed: Vec<Fixed>,
    runner: Runner,
}

impl Case {
    /// Prints a row; says how many of its predictions are off the limit.
    fn print(&self, name: &str) -> usize {
        let median = self.runner.median();
        let mut best = self.runner.steps.clone();
        best.sort_by(f64::total_cmp);
        let ratio = |predicted: u64, measured: u64| predicted as f64 / measured.max(1) as f64;
        let measured = self.runner.peaks();
        let peaks = measured.iter().zip(&self.plan.peak_bytes);
        let totals: Vec<f64> = peaks
            .clone()
            .map(|((t, _), p)| ratio(p.get(), *t))
            .collect();
        let own = peaks.zip(&self.fixed);
        let own: Vec<f64> = own
            .map(|(((_, a), p), fixed)| ratio(p.get() - fixed.0, *a))
            .collect();
        let step = self.plan.step.get() / median;
        let judged = std::iter::once(step).chain(totals.iter().copied());
        let off = judged.filter(|ratio| (ratio - 1.0).abs() > LIMIT).count();
        println!(
            "{name:5}  {:6}  {m}  {:8}  {:8.2} ms  {median:8.2} ms  {step:.3}  {best:.3}  {:.3}  {:.3}  {:6.2} MiB {:6.2} MiB  ({:.2}, {:.2}){}",
            self.plan.schedule.name(),
            format!("{:?}", self.plan.partition.balance()),
            self.plan.step.get() / 1e3,
            totals[0],
            totals[1],
            mib(measured[0].0),
            mib(measured[1].0),
            own[0],
            own[1],
            if off > 0 { "  <-- off" } else { "" },
            m = self.plan.micro_batches,
            median = median / 1e3,
            best = self.plan.step.get() / best[0],
        );
        off
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn measure(subject: &Subject, rounds: usize) -> anyhow::Result<usize> {
    let measured = subject.profile(DEVICES.len(), &MICROS)?;
    let mut cases = Vec::new();
    for kind in SCHEDULES {
        for micros in MICROS {
            let (plan, fixed) = subject.plan(&measured, DEVICES.len(), kind, micros)?;
            let pipe = Pipeline::builder(subject.spec.build())
                .devices(&DEVICES)
                .measure_memory(true)
                .plan(&plan)?
                .build()?;
            cases.push(Case {
                plan,
                fixed,
                runner: Runner::new(pipe, DEVICES.len()),
            });
        }
    }
    for _ in 0..rounds {
        for case in &mut cases {
            case.runner.run(subject, STEPS)?;
        }
    }
    let name = subject.spec.name();
    Ok(cases.iter().map(|case| case.print(name)).sum())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let rounds = if measured { ROUNDS } else { 1 };
    let chosen = |name: &str| {
        let mut names = arguments
            .iter()
            .filter(|argument| !argument.starts_with('-'));
        names.clone().next().is_none() || names.any(|own| own == name)
    };
    println!(
        "predicted over measured (median and best of {} steps); peaks of everything on either\n\
         device, and in brackets of activations alone\n",
        rounds * STEPS
    );
    println!(
        "model  schedule  m  cut  predicted  median  of median  of best  peak 0  peak 1  measured peaks"
    );
    let mut off = 0;
    for (name, sizes, batch) in SUBJECTS {
        if chosen(name) {
            let batch = if measured { batch } else { 8 };
            off += measure(&Subject::new(name, sizes, batch)?, rounds)?;
        }
    }
    println!(
        "\n{off} predictions farther than {:.0} % from what was measured",
        100.0 * LIMIT
    );
    Ok(())
}
