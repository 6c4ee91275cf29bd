//! Many simulations at once: every schedule at every number of devices, chunks and micro-batches.

use std::fmt::Display;

use crate::builtin::ScheduleKind;
use crate::ids::DeviceId;
use crate::schedule::Shape;
use crate::simulate::Simulation;
use crate::units::{Bytes, Micros};

/// What is tried: all combinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The schedules.
    pub schedules: Vec<ScheduleKind>,
    /// p.
    pub devices: Vec<usize>,
    /// m.
    pub micro_batches: Vec<usize>,
    /// v; of none each schedule has what it usually has, and `auto` what the simulation chooses.
    pub chunks: Vec<usize>,
}

/// One combination.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// Its p, v and m, as they were simulated.
    pub shape: Shape,
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
        }
    }
}

impl SweepPoint {
    /// How long the step takes for each micro-batch: what it comes to as there are more.
    pub fn each(&self) -> Option<Micros> {
        let outcome = self.outcome.as_ref().ok()?;
        Some(outcome.makespan * (1.0 / self.shape.micro_batches as f64))
    }
}

impl Sweep {
    /// Every combination once: by devices, then micro-batches, then schedules, then chunks.
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
    /// than the shape has.
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
        let point = |(schedule, shape)| {
            let simulation = simulate(schedule, shape).map_err(|error| error.to_string());
            let chunks = |own: &Simulation| {
                let own = own.schedule().schedule();
                own.stages() / own.devices().max(1)
            };
            let chunks = simulation.as_ref().map_or(shape.chunks, chunks);
            let shape = shape.with_chunks(chunks);
            SweepPoint {
                schedule,
                shape,
                outcome: simulation.map(|own| SweepOutcome::new(&own)),
            }
        };
        self.shapes().into_iter().map(point).collect()
    }
}
