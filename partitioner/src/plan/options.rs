//! Options of a plan.

use super::PlanError;
use crate::builtin::ScheduleKind;
use crate::machine::Machine;
use crate::profile::{MAX_BATCH, Profile};
use crate::solve::When;
use crate::tree::{MOST_LEAVES, can_have_leaves};
use crate::words::count;

/// Most micro-batches of a plan.
pub(super) const MAX_MICRO: usize = 1 << 16;
/// Most devices times micro-batches: every schedule of these is held in memory during the search.
const MAX_CELLS: usize = 1 << 20;
/// Most chunks per device that are tried if not asked for.
const MAX_CHUNKS: usize = 4;

/// Machine, mini-batch and the choices fixed in advance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The devices and links.
    pub machine: Machine,
    /// Micro-batches in a mini-batch, divided equally among replicas; none: to be chosen.
    pub micro_batches: Option<usize>,
    /// Samples in a mini-batch; none: `micro_batches` micro-batches of the profile's size, or, if
    /// those are to be chosen, four per device (of every replica).
    pub batch: Option<usize>,
    /// The schedule; none or [`Auto`](ScheduleKind::Auto): the fastest training schedule, built-in or
    /// computed for the costs.
    pub schedule: Option<ScheduleKind>,
    /// Stages per device; none: to be chosen.
    pub chunks: Option<usize>,
    /// Whether stages recompute.
    pub recompute: When,
    /// Whether stages offload their activations, if the machine has a link to the host's memory.
    pub offload: When,
    /// Whether CUDA graphs are used, if the profile has the host's times.
    pub cuda_graphs: When,
    /// Bytes of optimizer state per byte of parameters. If d replicas have a d-th of it each (a
    /// sharded optimizer, ZeRO-1), a d-th is given here; they exchange as much.
    pub optimizer_state: f64,
    /// Leaves of the tree in which gradients are summed, a power of two: with more than one, the
    /// stages have several sets of gradients ([`gradient_sets`](crate::tree::gradient_sets)).
    pub tree: usize,
}

/// Checks that replicas can have equal branches of the tree in which gradients are added.
pub(super) fn check_replicas(replicas: usize) -> Result<(), PlanError> {
    if can_have_leaves(replicas) {
        return Ok(());
    }
    Err(PlanError::Options(format!(
        "{replicas}: there is a power of two of them, such as {}",
        replicas.next_power_of_two().min(MOST_LEAVES),
        replicas = count(replicas, "replica")
    )))
}

/// Checks that `micro` micro-batches of `samples` samples have `fewest` each.
pub(super) fn check_fewest(fewest: usize, samples: usize, micro: usize) -> Result<(), PlanError> {
    let own = samples / micro;
    if own >= fewest {
        return Ok(());
    }
    let most = match samples / fewest {
        0 => String::new(),
        most => format!(", or {} at most", count(most, "micro-batch")),
    };
    Err(PlanError::Options(format!(
        "a mini-batch of {} makes {} of {own}, but the profile says that the model trains on no \
         fewer than {fewest} (a batch norm has one value of each channel, say): use a mini-batch of \
         {}{most}",
        count(samples, "sample"),
        count(micro, "micro-batch"),
        count(fewest.saturating_mul(micro), "sample"),
    )))
}

impl PlanOptions {
    /// Creates options with everything to be chosen, for an `AdamW` optimizer.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            micro_batches: None,
            batch: None,
            schedule: None,
            chunks: None,
            recompute: When::Auto,
            offload: When::Auto,
            cuda_graphs: When::Auto,
            optimizer_state: crate::solve::ADAMW_STATE,
            tree: 1,
        }
    }

    /// Returns the samples of a mini-batch: as asked for, or the micro-batches asked for (four per
    /// device) times `size`, the profile's micro-batch.
    ///
    /// # Errors
    /// [`PlanError::Options`] for numbers that no plan can have.
    pub fn samples(&self, size: usize) -> Result<usize, PlanError> {
        let replicas = self.machine.replicas();
        let devices = self.machine.devices().len() * replicas;
        let micro = self.micro_batches.unwrap_or(4 * devices);
        if !(1..=MAX_MICRO).contains(&micro) {
            let rule = format!(
                "{micro}: there must be from 1 to {MAX_MICRO}",
                micro = count(micro, "micro-batch")
            );
            return Err(PlanError::Options(rule));
        }
        if !can_have_leaves(self.tree) {
            let rule = format!(
                "a tree of {} leaves: it has a power of two of them, from 1 to {MOST_LEAVES}",
                self.tree
            );
            return Err(PlanError::Options(rule));
        }
        check_replicas(replicas)?;
        let own = self.machine.devices().len();
        if self.micro_batches.is_some() && micro / replicas > MAX_CELLS / own {
            let rule = format!(
                "{micro} on {devices}: devices times micro-batches of a \
                 replica must be at most {MAX_CELLS}",
                micro = count(micro, "micro-batch"),
                devices = count(devices, "device")
            );
            return Err(PlanError::Options(rule));
        }
        if !micro.is_multiple_of(replicas) {
            let rule = format!(
                "{micro} for {replicas} replicas: each takes as many, so it must be \
                 a multiple of {replicas}",
                micro = count(micro, "micro-batch")
            );
            return Err(PlanError::Options(rule));
        }
        let samples = self.batch.unwrap_or(micro.saturating_mul(size));
        if samples == 0 || samples > MAX_BATCH * 64 {
            let rule = format!(
                "a mini-batch of {samples}: must be from 1 to {}",
                MAX_BATCH * 64,
                samples = count(samples, "sample")
            );
            return Err(PlanError::Options(rule));
        }
        if self.micro_batches.is_some_and(|micro| micro > samples) {
            let rule = format!(
                "a mini-batch of {samples} does not make {micro}",
                micro = count(micro, "micro-batch"),
                samples = count(samples, "sample")
            );
            return Err(PlanError::Options(rule));
        }
        if samples < replicas {
            let rule = format!(
                "a mini-batch of {samples} has not one for each of {replicas}",
                replicas = count(replicas, "replica"),
                samples = count(samples, "sample")
            );
            return Err(PlanError::Options(rule));
        }
        Ok(samples)
    }

    /// Checks that micro-batches can have the fewest samples that the model can train on; `samples`
    /// is a mini-batch.
    pub(super) fn check_fewest(&self, profile: &Profile, samples: usize) -> Result<(), PlanError> {
        let replicas = self.machine.replicas();
        // An open count is at least the number of replicas.
        let micro = self.micro_batches.unwrap_or(replicas);
        check_fewest(profile.fewest_samples(), samples, micro)
    }

    /// Whether schedules may be computed.
    pub(super) fn computes(&self) -> bool {
        self.schedule.is_none_or(|kind| kind == ScheduleKind::Auto)
    }

    /// The schedules to try.
    pub(super) fn schedules(&self) -> Vec<ScheduleKind> {
        match self.schedule {
            Some(schedule) if schedule != ScheduleKind::Auto => vec![schedule],
            // A computed schedule needs costs, and so comes after these.
            _ => ScheduleKind::ALL
                .into_iter()
                .filter(|&kind| kind.trains() && kind != ScheduleKind::Auto)
                .collect(),
        }
    }

    /// The numbers of chunks to try.
    pub(super) fn chunk_counts(&self, layers: usize) -> Vec<usize> {
        let devices = self.machine.devices().len();
        match self.chunks {
            Some(chunks) => vec![chunks],
            None => (1..=MAX_CHUNKS).filter(|v| v * devices <= layers).collect(),
        }
    }

    /// Returns the numbers of micro-batches of a replica to try: about half, one, two, four and eight
    /// times the devices, and no split; as long as every micro-batch has `fewest` samples, and at
    /// most those `measured` if any number permits that.
    pub(super) fn micro_counts(
        &self,
        samples: usize,
        (fewest, measured): (usize, usize),
    ) -> Vec<usize> {
        let replicas = self.machine.replicas();
        if let Some(micro) = self.micro_batches {
            return vec![micro / replicas];
        }
        // The replica with the fewest samples.
        let most = samples / replicas / fewest;
        // The replica with the most samples.
        let samples = samples.div_ceil(replicas);
        let devices = self.machine.devices().len();
        let mut counts = vec![
            1,
            devices.div_ceil(2),
            devices,
            2 * devices,
            4 * devices,
            8 * devices,
        ];
        counts.push(most.min(8 * devices));
        counts.push(samples.div_ceil(measured));
        let most = most.min((MAX_CELLS / devices).clamp(1, MAX_MICRO));
        counts.retain(|&micro| micro <= most);
        // All have ⌈samples / micro⌉ samples: a count that would leave the last ones empty is
        // replaced by one that leaves none.
        for micro in &mut counts {
            *micro = samples.div_ceil(samples.div_ceil(*micro));
        }
        let is_measured = |micro: &usize| samples.div_ceil(*micro) <= measured;
        if counts.iter().any(is_measured) {
            counts.retain(is_measured);
        }
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}
