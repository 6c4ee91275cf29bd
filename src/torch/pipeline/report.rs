//! Report of a training step, read lazily.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, OnceLock};

use gpipe_partitioner::{Action, CheckedSchedule, DeviceId, MicroId, Span, Timeline, simulate};

use super::MemoryReport;
use super::device_times::Times;
use super::finite_check::FiniteCheck;
use super::losses::Losses;
use crate::error::Error;
use crate::{TorchError, Values};
use gpipe_engine::Program;

/// Host share from which a device counts as waiting for its host thread.
pub const HOST_BOUND: f64 = 0.9;

/// The result of one training step.
///
/// [`StepReport::read`] returns its numbers, including the loss. On the CPU they are available when
/// the step is over. Asynchronous devices may still be running then: reading waits for them, and
/// fails if a device failed meanwhile.
#[derive(Debug)]
pub struct StepReport {
    /// Gradient of the input, if it required one. With several processes: only of the samples whose
    /// copy of the first stage is in this process.
    pub input_gradient: Option<Values>,
    /// Activation memory, if the pipeline measures it
    /// ([`PipelineBuilder::measure_memory`](crate::PipelineBuilder::measure_memory)).
    pub memory: Option<MemoryReport>,
    numbers: OnceCell<Result<StepNumbers, TorchError>>,
    unread: RefCell<Option<Unread>>,
    program: Arc<Program>,
}

/// Numbers of one training step, returned by [`StepReport::read`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StepNumbers {
    /// The exact mini-batch loss: the micro-batches' losses weighted by their
    /// samples (or by the weights the loss function gave), added in order.
    pub loss: f64,
    /// Times of all actions, on the devices of all replicas.
    pub timeline: Timeline,
    /// Description of the non-finite value for which the step was skipped, if it was
    /// ([`NonFinite::Skip`](crate::NonFinite::Skip), or an overflow of
    /// [`Precision::Fp16`](crate::Precision::Fp16)): the loss is then that of the skipped step, and
    /// gradients and buffers are as before it.
    pub non_finite: Option<String>,
    /// Loss scale of this step, if it had one. All gradients have been divided by it.
    pub loss_scale: Option<f64>,
    /// The maximum over asynchronous devices of host time to submit the step's actions over device
    /// time to run them; a device that waits for the host inside an action runs as long as the
    /// host. See [`StepNumbers::is_host_bound`].
    pub host_share: Option<f64>,
    program: Arc<Program>,
    predicted: OnceLock<Timeline>,
}

/// Sources of the numbers.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) losses: Losses,
    /// Times by the host's clock.
    pub(super) timeline: Timeline,
    /// Times by the devices' own clocks, if they have any.
    pub(super) times: Option<Times>,
    pub(super) non_finite: Option<String>,
    pub(super) loss_scale: Option<f64>,
    /// See [`StepNumbers::host_share`]; used if `times` has none.
    pub(super) host_share: Option<f64>,
    /// Whether the step counts, if the host has not read that.
    pub(super) finite_check: Option<FiniteCheck>,
}

impl StepReport {
    pub(super) fn new(program: &Arc<Program>, unread: Unread) -> Self {
        Self {
            input_gradient: None,
            memory: None,
            numbers: OnceCell::new(),
            unread: RefCell::new(Some(unread)),
            program: Arc::clone(program),
        }
    }

    /// Returns the numbers. The first call waits until asynchronous devices have finished the step.
    ///
    /// # Errors
    /// An asynchronous device failed in the step, or did not finish it within the
    /// [patience](crate::PipelineBuilder::patience); then the numbers can be read later. Never on
    /// the CPU.
    pub fn read(&self) -> Result<&StepNumbers, Error> {
        self.in_time()?;
        self.numbers().map_err(|why| why.clone().into())
    }

    /// Extracts the part of the first replica with micro-batches from a timeline of all replicas,
    /// with the numbers of its schedule.
    pub fn of_first_replica(&self, all: &Timeline) -> Timeline {
        let mesh = self.program.mesh();
        let mut replicas = 0..mesh.replicas();
        let first = replicas.find(|own| !self.program.micro_batches_of(*own).is_empty());
        let first = first.unwrap_or_default();
        let start = self.program.micro_batches_of(first).start;
        let of_pipeline = (0..mesh.pipeline()).map(DeviceId);
        let spans = of_pipeline.flat_map(|device| {
            let own = all.spans_on(mesh.device(device, first)).iter();
            own.map(move |span| {
                let micro = MicroId(span.action.micro.index() - start);
                let action = Action {
                    micro,
                    ..span.action
                };
                Span {
                    device,
                    action,
                    ..*span
                }
            })
        });
        Timeline::new(mesh.pipeline(), spans.collect())
    }

    /// Returns whether the numbers are available, so that [`StepReport::read`] does not wait.
    pub fn is_ready(&self) -> bool {
        if self.numbers.get().is_some() {
            return true;
        }
        self.unread.borrow().as_ref().is_none_or(Unread::is_ready)
    }

    /// Waits before anything is taken out of the report, so that a timeout loses nothing.
    fn in_time(&self) -> Result<(), TorchError> {
        self.unread
            .borrow()
            .as_ref()
            .map_or(Ok(()), Unread::in_time)
    }

    fn numbers(&self) -> Result<&StepNumbers, &TorchError> {
        let read = self.numbers.get_or_init(|| match self.unread.take() {
            Some(unread) => unread.read(&self.program),
            None => Err(TorchError::new("the numbers of the step were lost")),
        });
        read.as_ref()
    }
}

impl StepNumbers {
    /// Returns whether a device had to wait for its host thread, which was busy nearly all the
    /// time: then larger micro-batches help, and faster kernels do not.
    pub fn is_host_bound(&self) -> bool {
        self.host_share.is_some_and(|share| share > HOST_BOUND)
    }

    /// Simulates the same schedule (with several replicas, that of the first one) with each stage's
    /// median times of this step: the step without waiting for anything but data. Simulated by the
    /// first call.
    ///
    /// # Complexity
    /// Linear in the number of actions of all devices.
    pub fn predicted(&self) -> &Timeline {
        self.predicted.get_or_init(|| {
            let schedule = self.program.schedule_for_now();
            let costs = self.timeline.stage_costs(schedule.schedule().stages());
            simulate(&one_by_one(&schedule), &costs).timeline
        })
    }

    /// Returns whether the step was undone because of a non-finite number.
    pub fn skipped(&self) -> bool {
        self.non_finite.is_some()
    }

    /// Returns the idle share of device time in this step, 0 to 1.
    pub fn bubble_measured(&self) -> f64 {
        self.timeline.bubble_fraction()
    }

    /// Returns the idle share of device time due to the schedule itself with these stages' times, 0
    /// to 1.
    pub fn bubble_predicted(&self) -> f64 {
        self.predicted().bubble_fraction()
    }
}

impl Unread {
    /// Makes the sources of a step that counts.
    pub(super) fn new(losses: Losses, timeline: Timeline) -> Self {
        Self {
            losses,
            timeline,
            times: None,
            non_finite: None,
            loss_scale: None,
            host_share: None,
            finite_check: None,
        }
    }

    fn is_ready(&self) -> bool {
        let checked = self.finite_check.as_ref().is_none_or(FiniteCheck::is_ready);
        checked && self.losses.is_ready() && self.times.as_ref().is_none_or(Times::are_ready)
    }

    /// See [`super::host_wait::HostWait::in_time`].
    fn in_time(&self) -> Result<(), TorchError> {
        self.losses.in_time()?;
        let check = self.finite_check.as_ref();
        check.map_or(Ok(()), FiniteCheck::in_time)?;
        self.times.as_ref().map_or(Ok(()), Times::in_time)
    }

    fn read(self, program: &Arc<Program>) -> Result<StepNumbers, TorchError> {
        let loss = self.losses.total()?;
        let (mut non_finite, mut loss_scale) = (self.non_finite, self.loss_scale);
        if let Some(finite_check) = self.finite_check {
            let (what, scale) = finite_check.read()?;
            (non_finite, loss_scale) = (what, loss_scale.map(|_| scale));
        }
        let times = self.times.map(Times::read).transpose()?;
        let host_share = times
            .as_ref()
            .map_or(self.host_share, |times| Some(times.host_share));
        let timeline = times.map_or(self.timeline, |times| times.timeline);
        Ok(StepNumbers {
            loss,
            timeline,
            non_finite,
            loss_scale,
            host_share,
            program: Arc::clone(program),
            predicted: OnceLock::new(),
        })
    }
}

/// Converts a schedule to how a stage runs it: overlapped pairs run one after the other, and the
/// first result leaves at once.
fn one_by_one(schedule: &CheckedSchedule) -> Cow<'_, CheckedSchedule> {
    let plain = schedule.schedule();
    if (0..plain.devices()).all(|device| plain.pairs(DeviceId(device)).is_empty()) {
        return Cow::Borrowed(schedule);
    }
    let plain = plain.clone().with_pairs(Vec::new());
    // Removing pairs cannot break a rule.
    plain.check().map_or(Cow::Borrowed(schedule), Cow::Owned)
}

#[cfg(any(test, feature = "testing"))]
impl StepReport {
    /// The report of a step whose device failed before its loss was read.
    #[allow(clippy::unwrap_used)]
    pub(crate) fn of_a_failed_device() -> Self {
        use super::wiring::{Purpose, Wiring};
        use gpipe_partitioner::{Partition, ScheduleKind, Shape};

        let schedule = ScheduleKind::GPipe.generate(Shape::new(1, 1)).unwrap();
        let partition = Partition::from_balance(1, &[1]).unwrap();
        let purpose = Purpose::Train {
            input_gradient: false,
        };
        let topology = Wiring::new(&partition, &[]).topology(purpose).unwrap();
        let program = Arc::new(Program::new(schedule, &topology).unwrap());
        let timeline = Timeline::new(1, Vec::new());
        Self::new(
            &program,
            Unread::new(Losses::of_a_failed_device(), timeline),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::of_a_failed_device;

    /// This once gave a loss of NaN and a step that was not skipped.
    #[test]
    fn a_device_that_failed_is_an_error_and_no_number() {
        let report = of_a_failed_device();
        for _ in 0..2 {
            assert!(report.read().is_err());
        }
    }
}
