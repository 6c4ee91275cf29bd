//! The streams of one device's thread, and what it does with them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Action, ActionKind};
use tch::Tensor;

use super::fork::{Fork, Joint};
use super::layer::{Event, Layer, Place, Stream};
use super::parcel::Parcel;
use super::sharing::Share;
use super::side::{Side, within};
use super::stow::Leaving;
use crate::torch::error::TorchError;
use crate::torch::memory::Account;
use crate::torch::values::Values;

/// Where what a stage sends goes, in the order of its edges; none is the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    /// Its outputs, then a skip each.
    pub(crate) forward: Vec<Option<Place>>,
    /// The gradients of its inputs, then a skip each.
    pub(crate) backward: Vec<Option<Place>>,
    /// Where what it keeps for its backwards goes to the host's memory meanwhile: pieces
    /// of at least so many bytes.
    pub(crate) offload: Option<u64>,
}

/// What a device's thread has of streams; a host's has none.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) layer: Option<Layer>,
    pub(super) home: Option<Home>,
    pub(super) leaving: RefCell<Leaving>,
    /// Who is charged with what the CPU's stages keep on the host.
    pub(super) elsewhere: Option<Account>,
    /// That of its accelerator, while the thread tells it something.
    pub(super) share: RefCell<Option<Share>>,
    joint: Arc<Joint>,
}

/// On an accelerator.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) device: usize,
    pub(super) main: Stream,
    /// For copies from the host, and to other places.
    arriving: Side,
    leaving: Side,
    /// For what is kept for backwards, on its way to the host and back.
    stowing: Side,
    returning: Side,
    /// For the far end of copies to other accelerators.
    far: RefCell<HashMap<usize, Stream>>,
}

impl Lane {
    /// For a thread whose values go nowhere but to other threads of the host.
    pub(crate) fn host() -> Self {
        Self {
            layer: None,
            home: None,
            leaving: RefCell::default(),
            elsewhere: None,
            share: RefCell::default(),
            joint: Arc::default(),
        }
    }

    /// The calling thread's, from now on.
    pub(crate) fn open(
        layer: &Layer,
        place: Place,
        joint: &Arc<Joint>,
    ) -> Result<Self, TorchError> {
        let home = match place {
            Place::Host => None,
            Place::Accelerator(device) => Some(Home::open(layer, device)?),
        };
        Ok(Self {
            layer: Some(layer.clone()),
            home,
            leaving: RefCell::default(),
            elsewhere: None,
            share: RefCell::default(),
            joint: Arc::clone(joint),
        })
    }

    /// The same, with an account for what is kept on the host.
    pub(crate) fn charging(self, elsewhere: Option<Account>) -> Self {
        Self { elsewhere, ..self }
    }

    /// Its accelerator, and who has its streams.
    pub(crate) fn on_accelerator(&self) -> Option<(&Layer, usize)> {
        let home = self.home.as_ref()?;
        Some((self.layer.as_ref()?, home.device))
    }

    /// The host waits until the main stream is empty.
    pub(crate) fn drain(&self) -> Result<(), TorchError> {
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            return Ok(());
        };
        layer.finish(&layer.record(home.main)?)
    }

    pub(super) fn place(&self) -> Place {
        let home = self.home.as_ref();
        home.map_or(Place::Host, |home| Place::Accelerator(home.device))
    }

    /// A task begins: it comes behind what the caller did, on whatever device.
    pub(crate) fn begin(&self, fork: Option<&Fork>) -> Result<(), TorchError> {
        let Some(layer) = &self.layer else {
            return Ok(());
        };
        for (device, event) in fork.into_iter().flat_map(Fork::events) {
            let _shared = match &self.home {
                Some(home) => home.other(layer, Place::Accelerator(*device)),
                None => Some(layer.share(*device)),
            };
            // That of its own accelerator is the main stream.
            layer.wait(layer.current(*device)?, event)?;
            if let Some(home) = self.home.as_ref().filter(|home| home.device != *device) {
                layer.wait(home.main, event)?;
            }
        }
        if let Some(home) = &self.home {
            let begin = layer.record(home.main)?;
            self.joint.leave(|left| {
                left.begin.get_or_insert((begin, Instant::now()));
            });
        }
        Ok(())
    }

    /// What somebody else has made is used by what comes into the main stream from now on
    /// (rule 4), and `who` reads it.
    pub(crate) fn uses(&self, who: &str, tensor: &Tensor) -> Result<(), TorchError> {
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            return Ok(());
        };
        // Of another accelerator: a copy in this thread's current stream there.
        if let Place::Accelerator(device) = layer.place(tensor, self.place()) {
            layer.used_by(tensor, layer.current(device)?)?;
        }
        layer.reads(
            who,
            Place::Accelerator(home.device),
            std::iter::once(tensor),
        );
        Ok(())
    }

    /// A task is over: what the caller does next comes behind it.
    pub(crate) fn end(&self) -> Result<(), TorchError> {
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            return Ok(());
        };
        let end = layer.record(home.main)?;
        self.joint.leave(|left| left.end = Some(end));
        Ok(())
    }

    /// Notes where an action begins; for [`Lane::acted`].
    pub(crate) fn acts(
        &self,
        action: Action,
        inputs: &[Values],
    ) -> Result<Option<Event>, TorchError> {
        let Some(layer) = &self.layer else {
            return Ok(None);
        };
        let reads = inputs.iter().flat_map(Values::present);
        layer.works(action, self.place(), reads);
        let home = self.home.as_ref();
        home.map(|home| layer.record(home.main)).transpose()
    }

    /// What an action made, on its way.
    pub(crate) fn send(
        &self,
        action: Action,
        begin: Option<Event>,
        outputs: Vec<Values>,
        route: &Route,
    ) -> Result<Vec<Parcel>, TorchError> {
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            let here = self.layer.as_ref().map(|_| Place::Host);
            let parcel = |values| Parcel {
                at: here,
                ..Parcel::from(values)
            };
            return Ok(outputs.into_iter().map(parcel).collect());
        };
        let outputs: Vec<Values> = outputs
            .into_iter()
            .map(|values| values.try_move(|tensor| layer.made(tensor, self.place())))
            .collect::<Result<_, _>>()?;
        let done = layer.record(home.main)?;
        if let Some(begin) = begin {
            let times = (action, begin, done.clone());
            self.joint.leave(|left| left.actions.push(times));
        }
        let to = match action.kind {
            ActionKind::Forward => &route.forward,
            _ => &route.backward,
        };
        let mut to = to.iter();
        outputs
            .into_iter()
            .map(|values| match to.next().copied().flatten() {
                Some(place) if place != self.place() => home.dispatch(layer, values, &done, place),
                _ => Ok(Parcel::new(values, self.place(), Some(done.clone()))),
            })
            .collect()
    }

    /// What arrived, to be used by what comes into the main stream from now on.
    pub(crate) fn receive(&self, parcel: Parcel) -> Result<Values, TorchError> {
        let Parcel { values, at, ready } = parcel;
        let (Some(layer), Some(at)) = (&self.layer, at) else {
            return Ok(values);
        };
        if let Some(home) = &self.home {
            return values.try_move(|tensor| home.receive(layer, tensor, at, ready.as_ref()));
        }
        if let Some(ready) = &ready {
            layer.finish(ready)?;
        }
        values.try_move(|tensor| match layer.place(&tensor, at) {
            Place::Host => Ok(tensor),
            // The caller's own, on an accelerator that it shares with no stage.
            Place::Accelerator(_) => {
                let here = tch::no_grad(|| tensor.f_to_device(tch::Device::Cpu))?;
                Ok(here.f_set_requires_grad(tensor.requires_grad())?)
            }
        })
    }
}

impl Home {
    fn open(layer: &Layer, device: usize) -> Result<Self, TorchError> {
        let main = layer.stream(device)?;
        layer.enter(main)?;
        Ok(Self {
            device,
            main,
            arriving: Side::default(),
            leaving: Side::default(),
            stowing: Side::default(),
            returning: Side::default(),
            far: RefCell::default(),
        })
    }

    pub(super) fn stowing(&self, layer: &Layer) -> Result<Stream, TorchError> {
        self.stowing.of(layer, self.device)
    }

    pub(super) fn returning(&self, layer: &Layer) -> Result<Stream, TorchError> {
        self.returning.of(layer, self.device)
    }

    /// The near and far stream of copies to another accelerator.
    fn far(&self, layer: &Layer, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.far.borrow().get(&device) {
            return Ok(*stream);
        }
        let stream = layer.stream(device)?;
        self.far.borrow_mut().insert(device, stream);
        Ok(stream)
    }

    /// The share of another accelerator, while it takes part in a copy.
    fn other(&self, layer: &Layer, place: Place) -> Option<Share> {
        match place {
            Place::Accelerator(device) if device != self.device => Some(layer.share(device)),
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
        layer: &Layer,
        values: Values,
        done: &Event,
        to: Place,
    ) -> Result<Parcel, TorchError> {
        let near = self.leaving.of(layer, self.device)?;
        layer.wait(near, done)?;
        let _shared = self.other(layer, to);
        let last = match to {
            Place::Host => near,
            Place::Accelerator(device) => self.far(layer, device)?,
        };
        let from = Place::Accelerator(self.device);
        let values = within(layer, &[near, last], || {
            values.try_move(|tensor| match layer.place(&tensor, from) {
                Place::Host => Ok(tensor),
                from @ Place::Accelerator(_) => {
                    let copy = layer.copy(&tensor, from, to)?;
                    layer.used_by(&tensor, near)?;
                    Ok(copy)
                }
            })
        })?;
        Ok(Parcel::new(values, to, Some(layer.record(last)?)))
    }

    fn receive(
        &self,
        layer: &Layer,
        tensor: Tensor,
        from: Place,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        match layer.place(&tensor, from) {
            Place::Accelerator(device) if device == self.device => {
                if let Some(ready) = ready {
                    layer.wait(self.main, ready)?;
                }
                layer.used_by(&tensor, self.main)?;
                Ok(tensor)
            }
            from => self.fetch(layer, &tensor, from, ready),
        }
    }

    /// Copies a tensor to here (rule 2).
    fn fetch(
        &self,
        layer: &Layer,
        tensor: &Tensor,
        from: Place,
        ready: Option<&Event>,
    ) -> Result<Tensor, TorchError> {
        let near = self.arriving.of(layer, self.device)?;
        let _shared = self.other(layer, from);
        let far = match from {
            Place::Host => near,
            Place::Accelerator(device) => self.far(layer, device)?,
        };
        if let Some(ready) = ready {
            layer.wait(far, ready)?;
        }
        let copy = within(layer, &[near, far], || {
            layer.copy(tensor, from, Place::Accelerator(self.device))
        })?;
        if from != Place::Host {
            layer.used_by(tensor, far)?;
        }
        layer.wait(self.main, &layer.record(near)?)?;
        layer.used_by(&copy, self.main)?;
        Ok(copy)
    }
}
