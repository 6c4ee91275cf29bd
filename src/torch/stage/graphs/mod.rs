//! Forward and backward passes that are captured once and replayed.
//!
//! On a CUDA device a stage's layers can be put into a *graph*: what they tell the device
//! is written down once, and is from then on given to it as one piece, which costs the
//! host next to nothing. What is replayed is the same kernels over the same memory, so
//! the numbers are those of the run without graphs, to the bit. How it goes:
//!
//! 1. The first steps run as ever, and warm up what libtorch and its libraries set up at
//!    first use. What could not be replayed is found out meanwhile: layers that draw
//!    random numbers, ask for their micro-batch, or have the host wait. See
//!    [`Graphs::refuse`]: such a stage goes on as it is.
//! 2. Then, where a micro-batch comes in a shape that has been there in as many steps and
//!    no *slot* is free, a new one is captured: inputs of its own, the forward over them,
//!    and, when that micro-batch comes back, the backward (or its two halves) from
//!    gradients of its own. A capture runs nothing; its replay follows at once.
//! 3. A slot belongs to one micro-batch from its forward to its last backward, so a stage
//!    comes to have as many as it holds micro-batches. The graphs of one slot share a pool
//!    of memory and are always replayed in the order of their capture; slots share none,
//!    since schedules mix their orders.
//! 4. What goes in is copied to the slot's inputs; what goes out to other stages is copied
//!    from its outputs, as the slot may be in use again before they are done.
//! 5. The gradients of parameters are the slot's too. After the replay they are added to
//!    the parameters' as autograd adds them: the first set, the others added, in order.
//! 6. The loss function is no part of the graph: it may be another one every step, and its
//!    weights and the loss scale are numbers of the host. It has a graph of autograd of its
//!    own, as where the last stage recomputes.
//!
//! A capture that fails is ended; the micro-batch runs without it, from the same inputs,
//! and so does everything after it.

mod backward;
mod copies;
mod forward;
mod slot;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use tch::Tensor;

use super::TorchStage;
use super::activations::{Half, Held, Inputs};
use super::forward::Pass;
use crate::torch::ffi::RandomScope;
use crate::torch::layer::Context;
pub(super) use backward::Returned;
pub(super) use forward::Start;
pub(super) use slot::Slot;
use slot::{Shape, shape};

/// Steps that a shape of micro-batches is there before it is captured.
const WARM_UP: u32 = 3;

/// Shapes of micro-batches that are told apart; others run without graphs.
const SHAPES: usize = 4;

/// Whether a stage is to capture graphs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Graphing {
    #[default]
    Off,
    On,
    /// It would be, but cannot; why.
    Refused(String),
}

/// What became of CUDA graphs on a stage; see
/// [`PipelineBuilder::cuda_graphs`](crate::PipelineBuilder::cuda_graphs).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphUse {
    /// Graphs that were captured.
    pub captured: u64,
    /// Graphs that were replayed.
    pub replayed: u64,
    /// Why the stage computes without graphs (and will not try again); none while nothing
    /// stands against them.
    pub eager: Option<String>,
}

/// A stage's graphs.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    known: Vec<Known>,
    /// How micro-batches come back: by their number and how many there are.
    halves: HashMap<(usize, usize), Half>,
    /// Slots that no micro-batch is in.
    #[expect(clippy::vec_box, reason = "flights have them in boxes")]
    free: Vec<Box<Slot>>,
    captured: Cell<u64>,
    replayed: Cell<u64>,
    refused: RefCell<Option<String>>,
    /// Where parameters and buffers were when graphs were captured, and which were
    /// trained.
    places: Vec<(usize, bool)>,
}

/// A shape of micro-batches.
#[derive(Debug)]
struct Known {
    shape: Shape,
    /// Steps that had it, and whether this one has.
    steps: u32,
    now: bool,
}

impl Graphs {
    pub(super) fn new(graphing: &Graphing) -> Option<Self> {
        let refused = match graphing {
            Graphing::Off => return None,
            Graphing::On => None,
            Graphing::Refused(why) => Some(why.clone()),
        };
        Some(Self {
            refused: RefCell::new(refused),
            ..Self::default()
        })
    }

    /// No graphs from now on, for this reason; the first one is kept.
    pub(super) fn refuse(&self, why: impl FnOnce() -> String) {
        self.refused.borrow_mut().get_or_insert_with(why);
    }

    fn is_refused(&self) -> bool {
        self.refused.borrow().is_some()
    }

    /// # Errors
    /// Graphs have been refused.
    fn still_wanted(&self) -> anyhow::Result<()> {
        match &*self.refused.borrow() {
            Some(why) => Err(anyhow::anyhow!("{why}")),
            None => Ok(()),
        }
    }

    /// Notes what a layer did that a graph could not do again.
    pub(super) fn watch(&self, layer: &str, ctx: &Context, random: &RandomScope) {
        if self.is_refused() {
            return;
        }
        if random.drew() {
            self.refuse(|| {
                format!("layer `{layer}` draws random numbers, which a graph cannot draw anew")
            });
        }
        if ctx.has_gathered() {
            self.refuse(|| {
                format!("layer `{layer}` gathers something over a step, which a graph would not do")
            });
        }
        if ctx.asked_for_micro() {
            self.refuse(|| {
                format!("layer `{layer}` asks for its micro-batch, which a graph does not know")
            });
        }
    }

    /// Notes whether the loss function wrote to what it was given; of a slot's outputs it
    /// must not, since the backward may need them.
    pub(super) fn watch_loss(&self, wrote: bool, apart: bool) -> anyhow::Result<()> {
        if !wrote || self.is_refused() {
            return Ok(());
        }
        self.refuse(|| "the loss function changes the outputs in place".to_owned());
        anyhow::ensure!(
            !apart,
            "the loss function changed the outputs in place, which it had not done before: CUDA \
             graphs are not used here from now on, run the step again"
        );
        Ok(())
    }

    /// The shape of these inputs, where they are to go through a graph.
    fn wanted(&mut self, inputs: &Inputs) -> Option<Shape> {
        if self.is_refused() {
            return None;
        }
        let shape = shape(inputs.all())?;
        if let Some(known) = self.known.iter_mut().find(|known| known.shape == shape) {
            known.now = true;
            return (known.steps >= WARM_UP).then_some(shape);
        }
        if self.known.len() == SHAPES {
            // The rarest makes room, unless it has graphs.
            let place = (0..SHAPES).min_by_key(|place| self.known[*place].steps)?;
            if self.known[place].steps >= WARM_UP {
                return None;
            }
            self.known.remove(place);
        }
        self.known.push(Known {
            shape,
            steps: 0,
            now: true,
        });
        None
    }

    /// Notes how a micro-batch comes back, for when it comes again: a schedule may take
    /// some in one pass and others in two halves, and a slot has graphs of one kind.
    fn note_half(&mut self, pass: Pass<'_>, half: Half) {
        self.halves.insert(key(pass), half);
    }

    fn half(&self, pass: Pass<'_>) -> Half {
        self.halves.get(&key(pass)).copied().unwrap_or(Half::Joint)
    }

    /// A slot for micro-batches of this shape that come back in this way.
    fn take(&mut self, shape: &Shape, half: Half) -> Option<Box<Slot>> {
        let mut free = self.free.iter();
        let place = free.position(|slot| slot.half == half && slot.shape == *shape)?;
        Some(self.free.swap_remove(place))
    }

    /// The slot's micro-batch is done. Where there are to be no more, the next step throws
    /// it away, once the device is done with it.
    fn give_back(&mut self, slot: Box<Slot>) {
        self.free.push(slot);
    }

    /// Whether this is a step after which shapes are captured.
    fn listens(&self) -> bool {
        !self.is_refused() && self.known.iter().any(|known| known.steps + 1 == WARM_UP)
    }
}

impl TorchStage {
    /// What became of graphs here; none where nobody asked for them.
    pub(crate) fn graph_use(&self) -> Option<GraphUse> {
        let graphs = self.graphs.as_ref()?;
        Some(GraphUse {
            captured: graphs.captured.get(),
            replayed: graphs.replayed.get(),
            eager: graphs.refused.borrow().clone(),
        })
    }

    /// Refuses graphs where one of the layers cannot be replayed.
    pub(super) fn judge_layers(&self) {
        let Some(graphs) = &self.graphs else { return };
        if let Some(layer) = self.layers.iter().find(|layer| !layer.layer.graph_safe()) {
            graphs.refuse(|| {
                format!(
                    "layer `{}` does not say that its forward pass can be captured and replayed \
                     (`Layer::graph_safe`)",
                    layer.name
                )
            });
        }
    }

    /// Notes how a micro-batch comes back.
    pub(super) fn note_half(&mut self, half: Half, pass: Pass<'_>) {
        if let Some(graphs) = &mut self.graphs {
            graphs.note_half(pass, half);
        }
    }

    /// A training step begins: graphs over parameters that have moved, or are trained now
    /// and were not, are thrown away.
    pub(super) fn begin_graphs(&mut self) -> anyhow::Result<()> {
        let Some(graphs) = &self.graphs else {
            return Ok(());
        };
        let outdated = !graphs.free.is_empty() && graphs.places != self.places();
        if outdated || graphs.is_refused() {
            self.drop_free_slots()?;
        }
        Ok(())
    }

    /// A training step ended well.
    pub(super) fn end_graphs(&mut self) {
        for known in self.graphs.iter_mut().flat_map(|graphs| &mut graphs.known) {
            known.steps += u32::from(std::mem::take(&mut known.now));
        }
    }

    /// A step is undone: slots that are whole can be used again, the others go.
    pub(super) fn abort_graphs(&mut self) {
        let Some(graphs) = &mut self.graphs else {
            return;
        };
        graphs.known.iter_mut().for_each(|known| known.now = false);
        let flights = self.flights.drain();
        let held = flights.flat_map(|(_, flight)| flight.segments);
        let slots = held.filter_map(|held| match held {
            Held::Slot(slot) => Some(slot),
            _ => None,
        });
        let (whole, parts): (Vec<_>, Vec<_>) = slots.partition(|slot| slot.is_whole());
        graphs.free.extend(whole);
        if !parts.is_empty() {
            // Should the device not answer, there is nobody left to tell.
            let _ = self.streams.synchronize();
        }
    }

    /// Has all that comes run without graphs, and says why.
    fn refuse_graphs(&mut self, why: impl FnOnce() -> String) -> anyhow::Result<()> {
        if let Some(graphs) = &self.graphs {
            graphs.refuse(why);
        }
        self.drop_free_slots()
    }

    fn drop_free_slots(&mut self) -> anyhow::Result<()> {
        if let Some(graphs) = &mut self.graphs
            && !graphs.free.is_empty()
        {
            // What is still to run must find its memory.
            self.streams.synchronize()?;
            graphs.free.clear();
        }
        Ok(())
    }

    /// What an error in a capture is told as.
    fn why_not(&self, error: &anyhow::Error) -> String {
        use crate::engine::Stage as _;
        match self.layer() {
            Some(layer) => format!("its capture failed in layer `{layer}`: {error:#}"),
            None => format!("its capture failed: {error:#}"),
        }
    }

    /// Runs what would be part of a graph. In the last step before there is one, it must
    /// not have the host wait.
    pub(super) fn heeding<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if !self.graphs.as_ref().is_some_and(Graphs::listens) {
            return body(self);
        }
        let streams = std::rc::Rc::clone(&self.streams);
        let (done, waited) = streams.detect_host_sync(|| body(self))?;
        if let (true, Some(graphs)) = (waited, &self.graphs) {
            graphs.refuse(|| {
                "an operator of its layers has the host wait for the device (it reads numbers, \
                 say), which none in a graph can"
                    .to_owned()
            });
        }
        Ok(done)
    }

    /// Where everything is that graphs know by its address.
    fn places(&self) -> Vec<(usize, bool)> {
        let all = self.own.iter();
        all.map(|tensor| (address(tensor), tensor.requires_grad()))
            .collect()
    }
}

fn key(pass: Pass<'_>) -> (usize, usize) {
    (pass.settings.mode.micro_batches(), pass.micro.index())
}

fn address(tensor: &Tensor) -> usize {
    tensor.data_ptr() as usize
}
