//! Steps in a row without a barrier between them.

use gpipe_partitioner::{
    Bytes, Micros, Placement, ScheduleKind, Shape, Simulation, StageId, auto_in_a_row, simulate,
};

use super::workload::Refusal;

/// Result of several steps, beside one with a barrier.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) steps: usize,
    /// The schedule's name.
    pub(super) schedule: String,
    /// Bubble in the steady state; of at least three steps.
    pub(super) steady_bubble: Option<f64>,
    /// Mean time of a step.
    pub(super) step: Micros,
    /// Micro-batches of each step.
    micro_batches: usize,
    /// Time of a step with a barrier, and its bubble.
    pub(super) with_barrier: Micros,
    bubble: f64,
}

impl Row {
    /// Simulates `steps` of the simulated step; an `auto` schedule is computed anew for them,
    /// within these limits of memory.
    pub(super) fn of(
        kind: ScheduleKind,
        step: &Simulation,
        steps: usize,
        caps: &[Option<Bytes>],
    ) -> Result<(Simulation, Self), Refusal> {
        let schedule = match kind {
            ScheduleKind::Auto => best(step, steps, caps)?,
            _ => step.schedule().schedule().clone(),
        };
        let name = schedule.name().to_owned();
        let all = schedule.in_a_row(steps).check();
        let all = simulate(&all.map_err(Refusal::new)?, step.costs());
        let row = Self {
            steps,
            schedule: name,
            steady_bubble: all.timeline.steady_bubble(steps),
            step: all.makespan() * (1.0 / steps as f64),
            micro_batches: step.schedule().schedule().micro_batches(),
            with_barrier: step.makespan(),
            bubble: step.timeline.bubble_fraction(),
        };
        Ok((all, row))
    }

    pub(super) fn words(&self) -> String {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let steady = self.steady_bubble.map_or_else(
            || "no steady state in fewer than three steps".to_owned(),
            |bubble| format!("{} idle in the steady state", percent(bubble)),
        );
        format!(
            "a step takes {} without a barrier, {steady}; with a barrier it takes {}, {} idle. Micro-batches \
             are numbered through all steps: each has {}",
            self.step,
            self.with_barrier,
            percent(self.bubble),
            self.micro_batches
        )
    }
}

/// Returns the fastest schedule over all steps, with the same placement of stages.
fn best(
    step: &Simulation,
    steps: usize,
    caps: &[Option<Bytes>],
) -> Result<gpipe_partitioner::Schedule, Refusal> {
    let own = step.schedule();
    let plain = own.schedule();
    let shape = Shape {
        devices: plain.devices(),
        chunks: plain.stages() / plain.devices().max(1),
        micro_batches: plain.micro_batches(),
    };
    let placed: Vec<_> = (0..plain.stages())
        .map(|s| own.device_of(StageId(s)))
        .collect();
    let placement = [Placement::Loop, Placement::Vee]
        .into_iter()
        .find(|placement| placement.devices(shape) == placed);
    // Links may cost more in another placement; without links, all placements cost the same.
    let placement = placement.filter(|_| has_links(step));
    let found = auto_in_a_row(shape, step.costs(), caps, placement, steps);
    Ok(found.map_err(Refusal::new)?.schedule.schedule().clone())
}

fn has_links(step: &Simulation) -> bool {
    let stages = step.schedule().schedule().stages();
    let edges = (0..stages).map(|stage| step.costs().edge(StageId(stage)));
    edges
        .into_iter()
        .any(|edge| edge != gpipe_partitioner::EdgeTimes::default())
}
