//! Many simulations at once: every schedule at every number of devices, chunks and micro-batches.

pub(crate) mod columns;

use std::fmt::Display;

use crate::builtin::ScheduleKind;
use crate::failures::{CheckpointInterval, Failures};
use crate::ids::DeviceId;
use crate::schedule::Shape;
use crate::simulate::{Jitter, Simulation};
use crate::units::{Bytes, Micros};

pub use columns::RiskColumns;

/// The share of steps with jitter that are no longer than the [late](JitterOutcome::late) ones.
const LATE: f64 = 0.95;

/// What is tried: all combinations.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The schedules.
    pub schedules: Vec<ScheduleKind>,
    /// p.
    pub devices: Vec<usize>,
    /// m.
    pub micro_batches: Vec<usize>,
    /// v; of none each schedule has what it usually has, and `auto` what the simulation chooses.
    pub chunks: Vec<usize>,
    /// What may go wrong; of none nothing does.
    pub risks: Vec<Risk>,
}

/// What may go wrong in a run: action times that vary, and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Risk {
    /// How action times vary.
    pub jitter: Option<Jitter>,
    /// What fails, and what it takes to go on.
    pub failures: Option<Failures>,
}

/// One combination.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// Its p, v and m, as they were simulated.
    pub shape: Shape,
    /// What may go wrong.
    pub risk: Risk,
    /// What is predicted, or why there is nothing.
    pub outcome: Result<SweepOutcome, String>,
}

/// The numbers of one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepOutcome {
    /// The step.
    pub makespan: Micros,
    /// The share of the devices' time in which they are idle.
    pub bubble_fraction: f64,
    /// The most micro-batches of any device, see
    /// [`CheckedSchedule::peak_in_flight_on`](crate::CheckedSchedule::peak_in_flight_on).
    pub peak_in_flight: f64,
    /// The most memory of any device.
    pub peak_bytes: Bytes,
    /// With jitter, where there is any.
    pub jittered: Option<JitterOutcome>,
    /// With failures: how often to write a checkpoint, and what of the time remains.
    pub interval: Option<CheckpointInterval>,
}

/// The numbers of steps whose action times vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterOutcome {
    /// The mean step.
    pub mean: Micros,
    /// The step that 95 % of all do not exceed.
    pub late: Micros,
    /// The share of the devices' time in which they are idle, over all these steps.
    pub bubble_fraction: f64,
}

impl SweepOutcome {
    /// The numbers of `simulation`.
    pub fn new(simulation: &Simulation) -> Self {
        let schedule = simulation.schedule();
        let devices = (0..schedule.schedule().devices()).map(DeviceId);
        Self {
            makespan: simulation.makespan(),
            bubble_fraction: simulation.timeline.bubble_fraction(),
            peak_in_flight: devices
                .map(|device| schedule.peak_in_flight_on(device))
                .fold(0.0, f64::max),
            peak_bytes: simulation
                .peak_bytes()
                .into_iter()
                .max()
                .unwrap_or_default(),
            jittered: None,
            interval: None,
        }
    }

    /// The same where this may go wrong.
    ///
    /// # Complexity
    /// With jitter, a simulation for each of its runs.
    #[must_use]
    pub fn with_risk(mut self, simulation: &Simulation, risk: &Risk) -> Self {
        self.jittered = risk.jitter.as_ref().map(|jitter| {
            let steps = simulation.jittered(jitter);
            JitterOutcome {
                mean: steps.mean(),
                late: steps.quantile(LATE),
                bubble_fraction: steps.bubble_fraction(),
            }
        });
        self.interval = (risk.failures).and_then(|failures| failures.interval(self.step()));
        self
    }

    /// The step; with jitter, the mean one.
    pub fn step(&self) -> Micros {
        self.jittered.map_or(self.makespan, |own| own.mean)
    }

    /// The share of the devices' time in which they are idle in such steps.
    pub fn bubble(&self) -> f64 {
        let jittered = self.jittered.map(|own| own.bubble_fraction);
        jittered.unwrap_or(self.bubble_fraction)
    }

    /// The share of the devices' time that is spent on nothing that lasts: the bubble, and with failures
    /// checkpoints, restarts and steps that are lost.
    pub fn lost(&self) -> f64 {
        let goodput = self.interval.map_or(1.0, |own| own.goodput);
        1.0 - (1.0 - self.bubble()) * goodput
    }
}

impl SweepPoint {
    /// How long the step takes for each micro-batch: what it comes to as there are more.
    pub fn each(&self) -> Option<Micros> {
        let outcome = self.outcome.as_ref().ok()?;
        Some(outcome.step() * (1.0 / self.shape.micro_batches as f64))
    }
}

impl Sweep {
    /// Every combination but of risks once: by devices, then micro-batches, then schedules, then
    /// chunks.
    pub fn shapes(&self) -> Vec<(ScheduleKind, Shape)> {
        let mut all = Vec::new();
        for (&p, &m) in
            (self.devices.iter()).flat_map(|p| self.micro_batches.iter().map(move |m| (p, m)))
        {
            for &kind in &self.schedules {
                let usual = [kind.default_chunks()];
                let chunks: &[usize] = match self.chunks.as_slice() {
                    [] => &usual,
                    given => given,
                };
                all.extend(
                    chunks
                        .iter()
                        .map(|&v| (kind, Shape::new(p, m).with_chunks(v))),
                );
            }
        }
        all
    }

    /// The numbers of all combinations, each as `simulate` predicts it, which may choose other chunks
    /// than the shape has: by devices, then micro-batches, then risks, then schedules, then chunks, so
    /// that schedules stand together that meet the same.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{Costs, Micros, ScheduleKind, Sweep, simulate};
    ///
    /// let sweep = Sweep {
    ///     schedules: vec![ScheduleKind::OneFOneB, ScheduleKind::ZbH1],
    ///     devices: vec![4],
    ///     micro_batches: vec![4, 8, 16],
    ///     chunks: vec![],
    ///     risks: vec![],
    /// };
    /// let unit = Micros::new(1000.0)?;
    /// let points = sweep.run(|kind, shape| {
    ///     let costs = Costs::uniform(shape.stages(), unit, unit, unit);
    ///     kind.generate(shape).map(|schedule| simulate(&schedule, &costs))
    /// });
    /// assert_eq!(points.len(), 6);
    /// let bubble = |at: usize| points[at].outcome.as_ref().ok().map(|own| own.bubble_fraction);
    /// // 1F1B with 4 micro-batches and with 16.
    /// assert!(bubble(4).is_some() && bubble(4) < bubble(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<E: Display>(
        &self,
        mut simulate: impl FnMut(ScheduleKind, Shape) -> Result<Simulation, E>,
    ) -> Vec<SweepPoint> {
        let whole = [Risk::default()];
        let risks: &[Risk] = match self.risks.as_slice() {
            [] => &whole,
            given => given,
        };
        let mut points = Vec::new();
        for (schedule, shape) in self.shapes() {
            let simulation = simulate(schedule, shape).map_err(|error| error.to_string());
            let chunks = |own: &Simulation| {
                let own = own.schedule().schedule();
                own.stages() / own.devices().max(1)
            };
            let chunks = simulation.as_ref().map_or(shape.chunks, chunks);
            points.extend(risks.iter().enumerate().map(|(number, risk)| {
                let point = SweepPoint {
                    schedule,
                    shape: shape.with_chunks(chunks),
                    risk: *risk,
                    outcome: simulation
                        .as_ref()
                        .map(|own| SweepOutcome::new(own).with_risk(own, risk))
                        .map_err(Clone::clone),
                };
                (number, point)
            }));
        }
        let place = |numbers: &[usize], own: usize| numbers.iter().position(|other| *other == own);
        points.sort_by_key(|(risk, point)| {
            let devices = place(&self.devices, point.shape.devices);
            let micro_batches = place(&self.micro_batches, point.shape.micro_batches);
            (devices, micro_batches, *risk)
        });
        points.into_iter().map(|(_, point)| point).collect()
    }
}
