//! Gain of steps in a row over steps with a barrier, on the workloads of `benches/peers`.

use std::time::Instant;

use gpipe::tch::{Device, Tensor};
use gpipe::{
    Optimizer, Pipeline,
    error::NonFinite,
    report::{StepInARow, StepsInARow},
};
use gpipe_partitioner::ScheduleKind;
use serde::Serialize;

use super::report_support::{Report, median};
use super::workloads::Workload;
use super::{STEPS, wanted};

const DEVICES: usize = 2;
const MICRO_BATCHES: usize = 4;
const ROUNDS: usize = 5;

#[derive(Serialize)]
struct Gain {
    workload: &'static str,
    schedule: &'static str,
    /// Milliseconds per step: medians of the rounds.
    barrier_ms: f64,
    row_ms: f64,
    /// The median of the rounds' ratios.
    ratio: f64,
    ratios: Vec<f64>,
    kept_bytes: u64,
}

struct Candidate {
    pipe: Pipeline,
    optimizer: Optimizer,
}

impl Candidate {
    fn new(workload: &Workload, kind: ScheduleKind, checks: NonFinite) -> anyhow::Result<Self> {
        let chunks = kind.default_chunks();
        let pipe = Pipeline::builder(workload.model.clone())
            .devices(&[Device::Cpu; DEVICES])
            .chunks(chunks)
            .balance(workload.balance(DEVICES * chunks)?)
            .schedule(kind)
            .micro_batches(MICRO_BATCHES)
            .threads_per_stage(1)
            .on_non_finite(checks)
            .build()?;
        Ok(Self {
            pipe,
            optimizer: Optimizer::new(workload.update),
        })
    }

    /// Milliseconds per step, with a barrier after each.
    fn with_barriers(&mut self, workload: &Workload, targets: &[&Tensor]) -> anyhow::Result<f64> {
        let begin = Instant::now();
        for target in targets {
            self.pipe
                .train_step(&workload.input, *target, workload.loss)?;
            self.optimizer.step(&mut self.pipe)?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3 / targets.len() as f64)
    }

    /// Milliseconds per step without barriers, and the number of steps that had one all the same.
    fn in_a_row(
        &mut self,
        workload: &Workload,
        targets: &[&Tensor],
    ) -> anyhow::Result<(f64, usize)> {
        let batches = targets.iter().map(|target| (&workload.input, *target));
        let (given, mut barriers) = (StepsInARow::default(), 0);
        let begin = Instant::now();
        let count = |step: StepInARow| barriers += usize::from(step.barrier);
        let (pipe, optimizer) = (&mut self.pipe, &mut self.optimizer);
        pipe.train_steps(optimizer, batches, workload.loss, &given, count)?;
        let taken = begin.elapsed().as_secs_f64() * 1e3 / targets.len() as f64;
        Ok((taken, barriers))
    }
}

/// Cost, in steps, of a step that is skipped in the middle of a row: the eleventh of twenty, whose loss is
/// NaN, against the same with barriers.
fn returned(name: &'static str, kind: ScheduleKind) -> anyhow::Result<f64> {
    let workload = Workload::new(name)?;
    // All targets are ignored: the mean over nothing is NaN.
    let none = workload.target.full_like(-100);
    let targets: Vec<&Tensor> = (0..STEPS)
        .map(|step| if step == 10 { &none } else { &workload.target })
        .collect();
    let mut barrier = Candidate::new(&workload, kind, NonFinite::Skip)?;
    let mut row = Candidate::new(&workload, kind, NonFinite::Skip)?;
    for own in [&mut barrier, &mut row] {
        own.with_barriers(&workload, &targets[..2])?;
    }
    let with = barrier.with_barriers(&workload, &targets)?;
    let (without, barriers) = row.in_a_row(&workload, &targets)?;
    println!(
        "{name} {kind} with one of {STEPS} steps skipped: {with:8.1} ms a step with barriers, \
         {without:8.1} ms in a row, where {barriers} steps had one all the same"
    );
    Ok((without - with) / with * STEPS as f64)
}

/// Measures both in turn, so that a drift of the machine's speed affects both.
fn gain(name: &'static str, kind: ScheduleKind) -> anyhow::Result<Gain> {
    let workload = Workload::new(name)?;
    let targets = [&workload.target; STEPS];
    let mut barrier = Candidate::new(&workload, kind, NonFinite::Allow)?;
    let mut row = Candidate::new(&workload, kind, NonFinite::Allow)?;
    barrier.with_barriers(&workload, &targets[..2])?;
    row.with_barriers(&workload, &targets[..2])?;
    let (mut barriers, mut rows, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let with = barrier.with_barriers(&workload, &targets)?;
        let (without, barriers_left) = row.in_a_row(&workload, &targets)?;
        anyhow::ensure!(barriers_left == 0, "{barriers_left} steps had a barrier");
        barriers.push(with);
        rows.push(without);
        ratios.push(with / without);
    }
    Ok(Gain {
        workload: name,
        schedule: kind.name(),
        barrier_ms: median(barriers),
        row_ms: median(rows),
        ratio: median(ratios.clone()),
        ratios,
        kept_bytes: row.pipe.kept_for_rows(),
    })
}

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    println!("p = 2, m = 4, {STEPS} steps with barriers and {STEPS} in a row in turn, a step:");
    for name in ["W1", "W2"] {
        let mut gains = Vec::new();
        for kind in [ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::Zbv] {
            if !wanted(&format!("real/{name}/{}", kind.name())) {
                continue;
            }
            let gain = gain(name, kind)?;
            println!(
                "{} {:6} {:8.1} ms with a barrier, {:8.1} ms without, {:.3} times as fast ({} MB kept)",
                gain.workload,
                gain.schedule,
                gain.barrier_ms,
                gain.row_ms,
                gain.ratio,
                gain.kept_bytes / 1_000_000,
            );
            gains.push(gain);
        }
        let best = gains.iter().map(|gain| gain.barrier_ms).reduce(f64::min);
        let row = gains.iter().map(|gain| gain.row_ms).reduce(f64::min);
        if let (Some(best), Some(row)) = (best, row) {
            report.at_least(
                format!(
                    "{name}, p = 2, m = 4: the best schedule in a row over the best with a barrier"
                ),
                best / row,
                1.05,
                "times as fast",
            );
        }
        gains.iter().for_each(|gain| report.row(gain));
        if wanted(&format!("real/{name}/skipped")) {
            let cost = returned(name, ScheduleKind::ZbH2)?;
            println!("{name}: a step that is skipped in the middle of 20 costs {cost:.1} steps");
        }
    }
    Ok(())
}
