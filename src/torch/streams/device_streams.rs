//! Streams of one device's thread, and the p2p transfers on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Action, ActionKind};
use tch::{Device, Tensor};

use super::backend::Backend;
use super::capture_lock::SubmitGuard;
use super::ids::{Event, MemorySpace, Stream};
use super::in_transit::InTransit;
use super::pending::PendingD2H;
use super::side_stream::{SideStream, within};
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
    pub(super) backend: Option<Backend>,
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
            backend: None,
            accelerator: None,
            pending_d2h: RefCell::default(),
            host_account: None,
            submit_guard: RefCell::default(),
            task_log: Arc::default(),
        }
    }

    /// Opens streams for the calling thread.
    pub(crate) fn open(
        backend: &Backend,
        place: MemorySpace,
        task_log: &Arc<TaskLog>,
    ) -> Result<Self, TorchError> {
        let accelerator = match place {
            MemorySpace::Host => None,
            MemorySpace::Accelerator(device) => Some(AcceleratorStreams::open(backend, device)?),
        };
        Ok(Self {
            backend: Some(backend.clone()),
            accelerator,
            pending_d2h: RefCell::default(),
            host_account: None,
            submit_guard: RefCell::default(),
            task_log: Arc::clone(task_log),
        })
    }

    /// Returns the same with an account that is charged for offloaded memory.
    pub(crate) fn charging_host(self, host_account: Option<Account>) -> Self {
        Self {
            host_account,
            ..self
        }
    }

    /// The backend and the number of the thread's accelerator.
    pub(crate) fn on_accelerator(&self) -> Option<(&Backend, usize)> {
        let accelerator = self.accelerator.as_ref()?;
        Some((self.backend.as_ref()?, accelerator.device))
    }

    /// Returns whether nothing is left to do after an action: there is no backend, and no offloaded
    /// memory to release.
    pub(crate) fn is_idle(&self) -> bool {
        self.backend.is_none() && self.pending_d2h.borrow().is_empty()
    }

    /// The host waits until the main stream is empty.
    pub(crate) fn synchronize(&self) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        backend.finish(&backend.record(accelerator.main)?)
    }

    /// Returns the device on which its thread computes.
    pub(crate) fn device(&self) -> Device {
        self.space().device()
    }

    pub(super) fn space(&self) -> MemorySpace {
        let accelerator = self.accelerator.as_ref();
        accelerator.map_or(MemorySpace::Host, |accelerator| {
            MemorySpace::Accelerator(accelerator.device)
        })
    }

    /// Begins a task, which runs after the caller's submitted work on any device (rule 6).
    pub(crate) fn begin_task(
        &self,
        caller_events: Option<&CallerEvents>,
    ) -> Result<(), TorchError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        for (device, event) in caller_events.into_iter().flat_map(CallerEvents::events) {
            let _shared = match &self.accelerator {
                Some(accelerator) => {
                    accelerator.guard_of_other(backend, MemorySpace::Accelerator(*device))
                }
                None => Some(backend.submit_guard(*device)),
            };
            // On its own accelerator the current stream is the main stream.
            backend.wait(backend.current(*device)?, event)?;
            if let Some(accelerator) = self
                .accelerator
                .as_ref()
                .filter(|accelerator| accelerator.device != *device)
            {
                backend.wait(accelerator.main, event)?;
            }
        }
        if let Some(accelerator) = &self.accelerator {
            let begin = backend.record(accelerator.main)?;
            self.task_log.note(|task_events| {
                task_events.begin.get_or_insert((begin, Instant::now()));
            });
        }
        Ok(())
    }

    /// Registers that `who` will read, in the main stream, a tensor made by another thread (rule
    /// 4). A tensor on another accelerator is copied in this thread's current stream there: the
    /// guard must live until then.
    pub(crate) fn uses(
        &self,
        who: &str,
        tensor: &Tensor,
    ) -> Result<Option<SubmitGuard>, TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(None);
        };
        let place = backend.space_of(tensor, self.space());
        let shared = accelerator.guard_of_other(backend, place);
        if let MemorySpace::Accelerator(device) = place {
            backend.used_by(tensor, backend.current(device)?)?;
        }
        backend.reads(
            who,
            MemorySpace::Accelerator(accelerator.device),
            std::iter::once(tensor),
        );
        Ok(shared)
    }

    /// Ends a task: the caller's next work runs after it (rule 6).
    pub(crate) fn end_task(&self) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        let end = backend.record(accelerator.main)?;
        self.task_log
            .note(|task_events| task_events.end = Some(end));
        Ok(())
    }

    /// Records the event at which an action begins, for [`DeviceStreams::send`].
    pub(crate) fn begin_action(
        &self,
        action: Action,
        inputs: &[Values],
    ) -> Result<Option<Event>, TorchError> {
        let Some(backend) = &self.backend else {
            return Ok(None);
        };
        let reads = inputs.iter().flat_map(Values::present);
        backend.works(action, self.space(), reads);
        let accelerator = self.accelerator.as_ref();
        accelerator
            .map(|accelerator| backend.record(accelerator.main))
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
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            let here = self.backend.as_ref().map(|_| MemorySpace::Host);
            let in_transit = |values| InTransit {
                at: here,
                ..InTransit::from(values)
            };
            return Ok(outputs.into_iter().map(in_transit).collect());
        };
        let outputs: Vec<Values> = outputs
            .into_iter()
            .map(|values| values.try_move(|tensor| backend.made(tensor, self.space())))
            .collect::<Result<_, _>>()?;
        let done = backend.record(accelerator.main)?;
        if let Some(begin) = begin {
            let times = (action, begin, done.clone());
            self.task_log
                .note(|task_events| task_events.actions.push(times));
        }
        let to = match action.kind {
            ActionKind::Forward => &route.forward,
            _ => &route.backward,
        };
        self.give(outputs, to, &done)
    }

    /// Sends gradients, which stay in use here, to the copies of a stage in other replicas.
    #[doc(alias = "reduce-scatter")]
    pub(crate) fn send_to_copies(
        &self,
        outputs: Vec<Values>,
        to: &[Option<MemorySpace>],
    ) -> Result<Vec<InTransit>, TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            let here = self.backend.as_ref().map(|_| MemorySpace::Host);
            let in_transit = |values| InTransit {
                at: here,
                ..InTransit::from(values)
            };
            return Ok(outputs.into_iter().map(in_transit).collect());
        };
        let done = backend.record(accelerator.main)?;
        self.give(outputs, to, &done)
    }

    /// Makes values that are ready when `done` is over, one for each place.
    fn give(
        &self,
        outputs: Vec<Values>,
        to: &[Option<MemorySpace>],
        done: &Event,
    ) -> Result<Vec<InTransit>, TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(outputs.into_iter().map(InTransit::from).collect());
        };
        let mut to = to.iter();
        outputs
            .into_iter()
            .map(|values| match to.next().copied().flatten() {
                Some(place) if place != self.space() => {
                    accelerator.dispatch(backend, values, done, place)
                }
                _ => Ok(InTransit::new(values, self.space(), Some(done.clone()))),
            })
            .collect()
    }

    /// Makes an arrived value usable in the main stream (rule 3), on this device.
    #[doc(alias = "irecv")]
    pub(crate) fn receive(&self, in_transit: InTransit) -> Result<Values, TorchError> {
        let InTransit { values, at, ready } = in_transit;
        let (Some(backend), Some(at)) = (&self.backend, at) else {
            return Ok(values);
        };
        if let Some(accelerator) = &self.accelerator {
            return values
                .try_move(|tensor| accelerator.receive(backend, tensor, at, ready.as_ref()));
        }
        // Without values (no gradient, for example) the host need not wait for the sender.
        let comes = values.present().next().is_some();
        if let Some(ready) = ready.as_ref().filter(|_| comes) {
            backend.finish(ready)?;
        }
        values.try_move(|tensor| match backend.space_of(&tensor, at) {
            MemorySpace::Host => Ok(tensor),
            // The caller's own tensor, on an accelerator that has no stage.
            MemorySpace::Accelerator(_) => {
                let here = tch::no_grad(|| tensor.f_to_device(tch::Device::Cpu))?;
                Ok(here.f_set_requires_grad(tensor.requires_grad())?)
            }
        })
    }
}

impl AcceleratorStreams {
    fn open(backend: &Backend, device: usize) -> Result<Self, TorchError> {
        let main = backend.stream(device)?;
        backend.enter(main)?;
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

    pub(super) fn offloading(&self, backend: &Backend) -> Result<Stream, TorchError> {
        self.offloading.of(backend, self.device)
    }

    pub(super) fn prefetching(&self, backend: &Backend) -> Result<Stream, TorchError> {
        self.prefetching.of(backend, self.device)
    }

    /// The stream at the other end of copies to another accelerator.
    fn peer(&self, backend: &Backend, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.peer.borrow().get(&device) {
            return Ok(*stream);
        }
        let stream = backend.stream(device)?;
        self.peer.borrow_mut().insert(device, stream);
        Ok(stream)
    }

    /// The guard of another accelerator, held while that takes part in a copy.
    #[track_caller]
    fn guard_of_other(&self, backend: &Backend, place: MemorySpace) -> Option<SubmitGuard> {
        match place {
            MemorySpace::Accelerator(device) if device != self.device => {
                Some(backend.submit_guard(device))
            }
            _ => None,
        }
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
        backend: &Backend,
        values: Values,
        done: &Event,
        to: MemorySpace,
    ) -> Result<InTransit, TorchError> {
        let near = self.sending.of(backend, self.device)?;
        backend.wait(near, done)?;
        let _shared = self.guard_of_other(backend, to);
        let last = match to {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(backend, device)?,
        };
        let from = MemorySpace::Accelerator(self.device);
        let values = within(backend, &[near, last], || {
            values.try_move(|tensor| match backend.space_of(&tensor, from) {
                MemorySpace::Host => Ok(tensor),
                from @ MemorySpace::Accelerator(_) => {
                    // The memory is the receiver's, and the stage that an error names the sender.
                    let copy = backend.copy(&tensor, from, to).map_err(|error| {
                        let to = device_name(to.device());
                        TorchError::new(format!("while sending to a stage on {to}: {error}"))
                    })?;
                    backend.used_by(&tensor, near)?;
                    Ok(copy)
                }
            })
        })?;
        Ok(InTransit::new(values, to, Some(backend.record(last)?)))
    }

    fn receive(
        &self,
        backend: &Backend,
        tensor: Tensor,
        from: MemorySpace,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        match backend.space_of(&tensor, from) {
            MemorySpace::Accelerator(device) if device == self.device => {
                if let Some(ready) = ready {
                    backend.wait(self.main, ready)?;
                }
                backend.used_by(&tensor, self.main)?;
                Ok(tensor)
            }
            from => self.fetch(backend, &tensor, from, ready),
        }
    }

    /// Copies a tensor to this accelerator (rule 2).
    fn fetch(
        &self,
        backend: &Backend,
        tensor: &Tensor,
        from: MemorySpace,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        let near = self.receiving.of(backend, self.device)?;
        let _shared = self.guard_of_other(backend, from);
        let peer = match from {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(backend, device)?,
        };
        if let Some(ready) = ready {
            backend.wait(peer, ready)?;
        }
        let copy = within(backend, &[near, peer], || {
            let to = MemorySpace::Accelerator(self.device);
            // No layer is running yet that an error could name.
            backend.copy(tensor, from, to).map_err(|error| {
                let from = device_name(from.device());
                TorchError::new(format!("while receiving from {from}: {error}"))
            })
        })?;
        if from != MemorySpace::Host {
            backend.used_by(tensor, peer)?;
        }
        backend.wait(self.main, &backend.record(near)?)?;
        backend.used_by(&copy, self.main)?;
        Ok(copy)
    }
}
