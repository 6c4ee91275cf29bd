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

/// Share of steps with jitter that are no longer than the [late](JitterOutcome::late) ones.
const LATE: f64 = 0.95;

/// Parameters of a sweep: all combinations are tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The schedules.
    pub schedules: Vec<ScheduleKind>,
    /// Numbers of devices, p.
    pub devices: Vec<usize>,
    /// Numbers of micro-batches, m.
    pub micro_batches: Vec<usize>,
    /// Numbers of chunks, v; if empty, the usual one, and for `auto` the simulation's choice.
    pub chunks: Vec<usize>,
    /// Risks; none if empty.
    pub risks: Vec<Risk>,
}

/// Risks of a run: action times that vary, and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Risk {
    /// Variation of action times.
    pub jitter: Option<Jitter>,
    /// Frequency of failures, and times of recovery.
    pub failures: Option<Failures>,
}

/// One combination.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// Its p, v and m, as simulated.
    pub shape: Shape,
    /// Risks of the run.
    pub risk: Risk,
    /// The prediction, or why there is none.
    pub outcome: Result<SweepOutcome, String>,
}

/// The numbers of one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepOutcome {
    /// The step.
    pub makespan: Micros,
    /// Idle share of the devices' time.
    pub bubble_fraction: f64,
    /// Most micro-batches in flight on any device, see
    /// [`CheckedSchedule::peak_in_flight_on`](crate::CheckedSchedule::peak_in_flight_on).
    pub peak_in_flight: f64,
    /// Peak memory of any device.
    pub peak_bytes: Bytes,
    /// Outcome with jitter, if any.
    pub jittered: Option<JitterOutcome>,
    /// With failures: the interval between checkpoints, and the remaining share of time.
    pub interval: Option<CheckpointInterval>,
}

/// Outcome of steps with random action times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterOutcome {
    /// The mean step.
    pub mean: Micros,
    /// The step that 95 % of all steps do not exceed.
    pub late: Micros,
    /// Idle share of the devices' time, over all these steps.
    pub bubble_fraction: f64,
}

impl SweepOutcome {
    /// Returns the numbers of `simulation`.
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

    /// Adds the outcome under a risk.
    ///
    /// # Complexity
    /// With jitter, one simulation per run.
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

    /// Idle share of the devices' time; with jitter, the mean one.
    pub fn bubble(&self) -> f64 {
        let jittered = self.jittered.map(|own| own.bubble_fraction);
        jittered.unwrap_or(self.bubble_fraction)
    }

    /// Share of the devices' time that is lost: to the bubble, and with failures to checkpoints,
    /// restarts and lost steps.
    pub fn lost(&self) -> f64 {
        let goodput = self.interval.map_or(1.0, |own| own.goodput);
        1.0 - (1.0 - self.bubble()) * goodput
    }
}

impl SweepPoint {
    /// Time of the step per micro-batch, which more micro-batches approach.
    pub fn each(&self) -> Option<Micros> {
        let outcome = self.outcome.as_ref().ok()?;
        Some(outcome.step() * (1.0 / self.shape.micro_batches as f64))
    }
}

impl Sweep {
    /// Returns every combination except risks, once: by devices, then micro-batches, then schedules,
    /// then chunks.
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

    /// Returns the numbers of all combinations as predicted by `simulate`, which may choose other chunks
    /// than the shape has: by devices, then micro-batches, then risks, then schedules, then chunks, so
    /// that schedules under equal conditions are together.
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
