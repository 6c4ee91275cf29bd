//! The streams of one device's thread, and what it does with them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Action, ActionKind};
use tch::Tensor;

use super::backend::{Backend, Event, MemorySpace, Stream};
use super::capture_lock::SubmitGuard;
use super::in_transit::InTransit;
use super::offload::PendingD2H;
use super::side_stream::{SideStream, within};
use super::task_events::{CallerEvents, TaskLog};
use crate::torch::error::TorchError;
use crate::torch::memory::Account;
use crate::torch::values::Values;

/// Where what a stage sends goes, in the order of its edges; none is the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    /// Its outputs, then a skip each.
    pub(crate) forward: Vec<Option<MemorySpace>>,
    /// The gradients of its inputs, then a skip each.
    pub(crate) backward: Vec<Option<MemorySpace>>,
    /// Where what it keeps for its backwards goes to the host's memory meanwhile: pieces
    /// of at least so many bytes.
    pub(crate) offload: Option<u64>,
}

/// What a device's thread has of streams; a host's has none.
#[derive(Debug)]
pub(crate) struct DeviceStreams {
    pub(super) backend: Option<Backend>,
    pub(super) accelerator: Option<AcceleratorStreams>,
    pub(super) pending_d2h: RefCell<PendingD2H>,
    /// Who is charged with what the CPU's stages keep on the host.
    pub(super) host_account: Option<Account>,
    /// That of its accelerator, while the thread tells it something.
    pub(super) share: RefCell<Option<SubmitGuard>>,
    task_log: Arc<TaskLog>,
}

/// On an accelerator.
#[derive(Debug)]
pub(super) struct AcceleratorStreams {
    pub(super) device: usize,
    pub(super) main: Stream,
    /// For copies from the host, and to other places.
    receiving: SideStream,
    sending: SideStream,
    /// For what is kept for backwards, on its way to the host and back.
    offloading: SideStream,
    prefetching: SideStream,
    /// For the peer end of copies to other accelerators.
    peer: RefCell<HashMap<usize, Stream>>,
}

impl DeviceStreams {
    /// For a thread whose values go nowhere but to other threads of the host.
    pub(crate) fn host() -> Self {
        Self {
            backend: None,
            accelerator: None,
            pending_d2h: RefCell::default(),
            host_account: None,
            share: RefCell::default(),
            task_log: Arc::default(),
        }
    }

    /// The calling thread's, from now on.
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
            share: RefCell::default(),
            task_log: Arc::clone(task_log),
        })
    }

    /// The same, with an account for what is kept on the host.
    pub(crate) fn charging_host(self, host_account: Option<Account>) -> Self {
        Self {
            host_account,
            ..self
        }
    }

    /// Its accelerator, and who has its streams.
    pub(crate) fn on_accelerator(&self) -> Option<(&Backend, usize)> {
        let accelerator = self.accelerator.as_ref()?;
        Some((self.backend.as_ref()?, accelerator.device))
    }

    /// The host waits until the main stream is empty.
    pub(crate) fn synchronize(&self) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        backend.finish(&backend.record(accelerator.main)?)
    }

    pub(super) fn space(&self) -> MemorySpace {
        let accelerator = self.accelerator.as_ref();
        accelerator.map_or(MemorySpace::Host, |accelerator| {
            MemorySpace::Accelerator(accelerator.device)
        })
    }

    /// A task begins: it comes behind what the caller did, on whatever device.
    pub(crate) fn begin_task(
        &self,
        caller_events: Option<&CallerEvents>,
    ) -> Result<(), TorchError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        for (device, event) in caller_events.into_iter().flat_map(CallerEvents::events) {
            let _shared = match &self.accelerator {
                Some(accelerator) => accelerator.other(backend, MemorySpace::Accelerator(*device)),
                None => Some(backend.submit_guard(*device)),
            };
            // That of its own accelerator is the main stream.
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

    /// What somebody else has made is used by what comes into the main stream from now on
    /// (rule 4), and `who` reads it.
    pub(crate) fn uses(&self, who: &str, tensor: &Tensor) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        // Of another accelerator: a copy in this thread's current stream there.
        if let MemorySpace::Accelerator(device) = backend.space_of(tensor, self.space()) {
            backend.used_by(tensor, backend.current(device)?)?;
        }
        backend.reads(
            who,
            MemorySpace::Accelerator(accelerator.device),
            std::iter::once(tensor),
        );
        Ok(())
    }

    /// A task is over: what the caller does next comes behind it.
    pub(crate) fn end_task(&self) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        let end = backend.record(accelerator.main)?;
        self.task_log
            .note(|task_events| task_events.end = Some(end));
        Ok(())
    }

    /// Notes where an action begins; for [`DeviceStreams::end_action`].
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

    /// What an action made, on its way.
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
        let mut to = to.iter();
        outputs
            .into_iter()
            .map(|values| match to.next().copied().flatten() {
                Some(place) if place != self.space() => {
                    accelerator.dispatch(backend, values, &done, place)
                }
                _ => Ok(InTransit::new(values, self.space(), Some(done.clone()))),
            })
            .collect()
    }

    /// What arrived, to be used by what comes into the main stream from now on.
    pub(crate) fn receive(&self, in_transit: InTransit) -> Result<Values, TorchError> {
        let InTransit { values, at, ready } = in_transit;
        let (Some(backend), Some(at)) = (&self.backend, at) else {
            return Ok(values);
        };
        if let Some(accelerator) = &self.accelerator {
            return values
                .try_move(|tensor| accelerator.receive(backend, tensor, at, ready.as_ref()));
        }
        if let Some(ready) = &ready {
            backend.finish(ready)?;
        }
        values.try_move(|tensor| match backend.space_of(&tensor, at) {
            MemorySpace::Host => Ok(tensor),
            // The caller's own, on an accelerator that it shares with no stage.
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

    /// The near and far stream of copies to another accelerator.
    fn peer(&self, backend: &Backend, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.peer.borrow().get(&device) {
            return Ok(*stream);
        }
        let stream = backend.stream(device)?;
        self.peer.borrow_mut().insert(device, stream);
        Ok(stream)
    }

    /// The share of another accelerator, while it takes part in a copy.
    fn other(&self, backend: &Backend, place: MemorySpace) -> Option<SubmitGuard> {
        match place {
            MemorySpace::Accelerator(device) if device != self.device => {
                Some(backend.submit_guard(device))
            }
            _ => None,
        }
    }

    /// Copies values to another place, once `done` is over (rule 2).
    ///
    /// The memory at the other end is taken here, by the sender, and not posted by the
    /// receiver ahead of time: that would gain nothing. The host puts the copy into its
    /// stream directly behind the work that makes the value, before that work is over
    /// (unless the host is the slower one), so the copy waits for nothing but the event.
    /// Taking the memory is a look into the allocator's cache, the least of what the host
    /// does for a copy; and memory that is taken an action earlier is held for an action
    /// longer, on each edge.
    fn dispatch(
        &self,
        backend: &Backend,
        values: Values,
        done: &Event,
        to: MemorySpace,
    ) -> Result<InTransit, TorchError> {
        let near = self.sending.of(backend, self.device)?;
        backend.wait(near, done)?;
        let _shared = self.other(backend, to);
        let last = match to {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(backend, device)?,
        };
        let from = MemorySpace::Accelerator(self.device);
        let values = within(backend, &[near, last], || {
            values.try_move(|tensor| match backend.space_of(&tensor, from) {
                MemorySpace::Host => Ok(tensor),
                from @ MemorySpace::Accelerator(_) => {
                    let copy = backend.copy(&tensor, from, to)?;
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

    /// Copies a tensor to here (rule 2).
    fn fetch(
        &self,
        backend: &Backend,
        tensor: &Tensor,
        from: MemorySpace,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        let near = self.receiving.of(backend, self.device)?;
        let _shared = self.other(backend, from);
        let peer = match from {
            MemorySpace::Host => near,
            MemorySpace::Accelerator(device) => self.peer(backend, device)?,
        };
        if let Some(ready) = ready {
            backend.wait(peer, ready)?;
        }
        let copy = within(backend, &[near, peer], || {
            backend.copy(tensor, from, MemorySpace::Accelerator(self.device))
        })?;
        if from != MemorySpace::Host {
            backend.used_by(tensor, peer)?;
        }
        backend.wait(self.main, &backend.record(near)?)?;
        backend.used_by(&copy, self.main)?;
        Ok(copy)
    }
}
