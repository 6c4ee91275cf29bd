//! Streams of one device's thread, and the p2p transfers on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Action, ActionKind};
use tch::{Device, Tensor};

use super::cuda;
use super::ids::{Event, MemorySpace, Stream};
use super::in_transit::InTransit;
use super::lost;
use super::pending::PendingD2H;
use super::side_stream::{SideStream, within};
use super::submit::SubmitGuard;
use super::task_events::{CallerEvents, TaskLog};
use crate::device::device_name;
use crate::error::TorchError;
use crate::memory::Account;
use crate::values::Values;

/// The destinations of what a stage sends, in the order of its edges; none is the caller.
#[doc(alias = "p2p")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    /// Destinations of its outputs, then one for each skip.
    pub(crate) forward: Vec<Option<MemorySpace>>,
    /// Destinations of its input gradients, then one for each skip.
    pub(crate) backward: Vec<Option<MemorySpace>>,
    /// Least size in bytes of a piece of memory to offload, if the stage offloads its activations.
    pub(crate) offload: Option<u64>,
}

/// The streams of a device's thread; a thread that computes on the host has none.
#[doc(alias = "StreamContext")]
#[derive(Debug)]
pub(crate) struct DeviceStreams {
    /// Whether a stage of the pipeline is on an accelerator.
    among_accelerators: bool,
    pub(super) accelerator: Option<AcceleratorStreams>,
    pub(super) pending_d2h: RefCell<PendingD2H>,
    /// The account that is charged with what CPU stages offload.
    pub(super) host_account: Option<Account>,
    /// Held while the thread submits work to its accelerator.
    pub(super) submit_guard: RefCell<Option<SubmitGuard>>,
    task_log: Arc<TaskLog>,
}

/// The streams of a thread that computes on an accelerator.
#[derive(Debug)]
pub(super) struct AcceleratorStreams {
    pub(super) device: usize,
    pub(super) main: Stream,
    /// For p2p copies: values that arrive, and values that are sent.
    receiving: SideStream,
    sending: SideStream,
    /// For offloading activations (D2H), and prefetching them (H2D).
    offloading: SideStream,
    prefetching: SideStream,
    /// Stream at the other end of p2p copies, by accelerator.
    peer: RefCell<HashMap<usize, Stream>>,
}

impl DeviceStreams {
    /// The streams of a thread that only exchanges values with other threads of the host.
    pub(crate) fn host() -> Self {
        Self {
            among_accelerators: false,
            accelerator: None,
            pending_d2h: RefCell::default(),
            host_account: None,
            submit_guard: RefCell::default(),
            task_log: Arc::default(),
        }
    }

    /// Opens streams for the calling thread, in a pipeline with accelerators.
    pub(crate) fn open(place: MemorySpace, task_log: &Arc<TaskLog>) -> Result<Self, TorchError> {
        let accelerator = match place {
            MemorySpace::Host => None,
            MemorySpace::Accelerator(device) => Some(AcceleratorStreams::open(device)?),
        };
        Ok(Self {
            among_accelerators: true,
            accelerator,
            task_log: Arc::clone(task_log),
            ..Self::host()
        })
    }

    /// Returns the same with an account that is charged for offloaded memory.
    pub(crate) fn charging_host(self, host_account: Option<Account>) -> Self {
        Self {
            host_account,
            ..self
        }
    }

    /// The number of the thread's accelerator.
    pub(crate) fn on_accelerator(&self) -> Option<usize> {
        let accelerator = self.accelerator.as_ref();
        accelerator.map(|accelerator| accelerator.device)
    }

    /// Returns whether an action has nothing to do with accelerators, and there is no offloaded
    /// memory to release after it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.among_accelerators && self.pending_d2h.borrow().is_empty()
    }

    /// Returns whether a device of the pipeline may be lost: then page-locked memory must not be
    /// freed.
    pub(crate) fn is_lost(&self) -> bool {
        self.among_accelerators && lost::loss().is_some()
    }

    /// The host waits until the main stream is empty.
    pub(crate) fn synchronize(&self) -> Result<(), TorchError> {
        match &self.accelerator {
            Some(accelerator) => cuda::finish(&cuda::record(accelerator.main)?),
            None => Ok(()),
        }
    }

    /// Returns the device on which its thread computes.
    pub(crate) fn device(&self) -> Device {
        self.space().device()
    }

    pub(super) fn space(&self) -> MemorySpace {
        let device = self.on_accelerator();
        device.map_or(MemorySpace::Host, MemorySpace::Accelerator)
    }

    /// Begins a task, which runs after the caller's submitted work on any device (rule 6).
    pub(crate) fn begin_task(
        &self,
        caller_events: Option<&CallerEvents>,
    ) -> Result<(), TorchError> {
        for (device, event) in caller_events.into_iter().flat_map(CallerEvents::events) {
            let _shared = match &self.accelerator {
                Some(accelerator) => accelerator.guard_of_other(MemorySpace::Accelerator(*device)),
                None => Some(cuda::submit_guard(*device)),
            };
            // On its own accelerator the current stream is the main stream.
            cuda::wait(cuda::current(*device)?, event)?;
            if let Some(accelerator) = self
                .accelerator
                .as_ref()
                .filter(|accelerator| accelerator.device != *device)
            {
                cuda::wait(accelerator.main, event)?;
            }
        }
        if let Some(accelerator) = &self.accelerator {
            let begin = cuda::record(accelerator.main)?;
            self.task_log.note(|task_events| {
                task_events.begin.get_or_insert((begin, Instant::now()));
            });
        }
        Ok(())
    }

    /// Registers that the main stream will read a tensor made by another thread (rule 4). A tensor
    /// on another accelerator is copied in this thread's current stream there: the guard must live
    /// until then.
    pub(crate) fn uses(&self, tensor: &Tensor) -> Result<Option<SubmitGuard>, TorchError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(None);
        };
        let place = MemorySpace::of(tensor.device());
        let shared = accelerator.guard_of_other(place);
        if let MemorySpace::Accelerator(device) = place {
            cuda::used_by(tensor, cuda::current(device)?)?;
        }
        Ok(shared)
    }

    /// Ends a task: the caller's next work runs after it (rule 6).
    pub(crate) fn end_task(&self) -> Result<(), TorchError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(());
        };
        let end = cuda::record(accelerator.main)?;
        self.task_log
            .note(|task_events| task_events.end = Some(end));
        Ok(())
    }

    /// Records the event at which an action begins, for [`DeviceStreams::send`].
    pub(crate) fn begin_action(&self) -> Result<Option<Event>, TorchError> {
        let accelerator = self.accelerator.as_ref();
        accelerator
            .map(|accelerator| cuda::record(accelerator.main))
            .transpose()
    }

    /// Sends what an action made (rule 2).
    #[doc(alias = "isend")]
    pub(crate) fn send(
        &self,
        action: Action,
        begin: Option<Event>,
        outputs: Vec<Values>,
        route: &Route,
    ) -> Result<Vec<InTransit>, TorchError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(outputs.into_iter().map(InTransit::from).collect());
        };
        let done = cuda::record(accelerator.main)?;
        if let Some(begin) = begin {
            let times = (action, begin, done.clone());
            self.task_log
                .note(|task_events| task_events.actions.push(times));
        }
        let to = match action.kind {
            ActionKind::Forward => &route.forward,
            _ => &route.backward,
        };
        accelerator.give(outputs, to, &done)
    }

    /// Sends gradients, which stay in use here, to the copies of a stage in other replicas.
    #[doc(alias = "reduce-scatter")]
    pub(crate) fn send_to_copies(
        &self,
        outputs: Vec<Values>,
        to: &[Option<MemorySpace>],
    ) -> Result<Vec<InTransit>, TorchError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(outputs.into_iter().map(InTransit::from).collect());
        };
        let done = cuda::record(accelerator.main)?;
        accelerator.give(outputs, to, &done)
    }

    /// Makes an arrived value usable in the main stream (rule 3), on this device.
    #[doc(alias = "irecv")]
    pub(crate) fn receive(&self, in_transit: InTransit) -> Result<Values, TorchError> {
        let InTransit { values, ready } = in_transit;
        if let Some(accelerator) = &self.accelerator {
            return values.try_move(|tensor| accelerator.receive(tensor, ready.as_ref()));
        }
        // Without values (no gradient, for example) the host need not wait for the sender.
        let comes = values.present().next().is_some();
        let Some(ready) = ready.filter(|_| comes) else {
            return Ok(values);
        };
        cuda::finish(&ready)?;
        values.try_move(|tensor| {
            if tensor.device() == Device::Cpu {
                return Ok(tensor);
            }
            // The caller's own tensor, on an accelerator that has no stage.
            let here = tch::no_grad(|| tensor.f_to_device(Device::Cpu))?;
            Ok(here.f_set_requires_grad(tensor.requires_grad())?)
        })
    }
}

impl AcceleratorStreams {
    fn open(device: usize) -> Result<Self, TorchError> {
        let main = cuda::stream(device)?;
        cuda::enter(main)?;
        Ok(Self {
            device,
            main,
            receiving: SideStream::default(),
            sending: SideStream::default(),
            offloading: SideStream::default(),
            prefetching: SideStream::default(),
            peer: RefCell::default(),
        })
    }

    pub(super) fn offloading(&self) -> Result<Stream, TorchError> {
        self.offloading.of(self.device)
    }

    pub(super) fn prefetching(&self) -> Result<Stream, TorchError> {
        self.prefetching.of(self.device)
    }

    /// The stream at the other end of copies to another accelerator.
    fn peer(&self, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.peer.borrow().get(&device) {
            return Ok(*stream);
        }
        let stream = cuda::stream(device)?;
        self.peer.borrow_mut().insert(device, stream);
        Ok(stream)
    }

    /// The guard of another accelerator, held while that takes part in a copy.
    #[track_caller]
    fn guard_of_other(&self, place: MemorySpace) -> Option<SubmitGuard> {
        match place {
            MemorySpace::Accelerator(device) if device != self.device => {
                Some(cuda::submit_guard(device))
            }
            _ => None,
        }
    }

    /// Makes values that are ready when `done` is over, one for each place.
    fn give(
        &self,
        outputs: Vec<Values>,
        to: &[Option<MemorySpace>],
        done: &Event,
    ) -> Result<Vec<InTransit>, TorchError> {
        let (mut to, here) = (to.iter(), MemorySpace::Accelerator(self.device));
        outputs
            .into_iter()
            .map(|values| match to.next().copied().flatten() {
                Some(place) if place != here => self.dispatch(values, done, place),
                _ => Ok(InTransit::new(values, Some(done.clone()))),
            })
            .collect()
    }

    /// Copies values to another memory space, once `done` is over (rule 2).
    ///
    /// The sender allocates the memory at the other end; posting a buffer ahead of time at the
    /// receiver would gain nothing. The host submits the copy directly after the work that makes
    /// the value, before that work is over (unless the host is slower), so the copy waits only for
    /// the event. The allocation is a lookup in the allocator's cache, the smallest part of the
    /// host's work for a copy; and memory allocated an action earlier is held for an action longer,
    /// on each edge.
    #[doc(alias = "p2p")]
    fn dispatch(
        &self,
        values: Values,
        done: &Event,
        to: MemorySpace,
    ) -> Result<InTransit, TorchError> {
        let near = self.sending.of(self.device)?;
        cuda::wait(near, done)?;
        let _shared = self.guard_of_other(to);
        let last = match to {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(device)?,
        };
        let values = within(&[near, last], || {
            values.try_move(|tensor| {
                if tensor.device() == Device::Cpu {
                    return Ok(tensor);
                }
                // The memory is the receiver's, and the stage that an error names the sender.
                let copy = cuda::copy(&tensor, to).map_err(|error| {
                    let to = device_name(to.device());
                    TorchError::new(format!("while sending to a stage on {to}: {error}"))
                })?;
                cuda::used_by(&tensor, near)?;
                Ok(copy)
            })
        })?;
        Ok(InTransit::new(values, Some(cuda::record(last)?)))
    }

    fn receive(&self, tensor: Tensor, ready: Option<&Event>) -> Result<Tensor, TorchError> {
        match MemorySpace::of(tensor.device()) {
            MemorySpace::Accelerator(device) if device == self.device => {
                if let Some(ready) = ready {
                    cuda::wait(self.main, ready)?;
                }
                cuda::used_by(&tensor, self.main)?;
                Ok(tensor)
            }
            from => self.fetch(&tensor, from, ready),
        }
    }

    /// Copies a tensor to this accelerator (rule 2).
    fn fetch(
        &self,
        tensor: &Tensor,
        from: MemorySpace,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        let near = self.receiving.of(self.device)?;
        let _shared = self.guard_of_other(from);
        let peer = match from {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(device)?,
        };
        if let Some(ready) = ready {
            cuda::wait(peer, ready)?;
        }
        let copy = within(&[near, peer], || {
            let to = MemorySpace::Accelerator(self.device);
            // No layer is running yet that an error could name.
            cuda::copy(tensor, to).map_err(|error| {
                let from = device_name(from.device());
                TorchError::new(format!("while receiving from {from}: {error}"))
            })
        })?;
        if from != MemorySpace::Host {
            cuda::used_by(tensor, peer)?;
        }
        cuda::wait(self.main, &cuda::record(near)?)?;
        cuda::used_by(&copy, self.main)?;
        Ok(copy)
    }
}
