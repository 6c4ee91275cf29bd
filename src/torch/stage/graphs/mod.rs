//! Forward and backward passes that are captured once and replayed.
//!
//! On a CUDA device a stage's layers can be put into a *graph*: their kernels are recorded once and
//! then launched as one piece, at almost no cost for the host. A replay runs the same kernels over
//! the same memory, so the numbers are those of the run without graphs, to the bit. The steps are:
//!
//! 1. The first steps run as ever, and warm up what libtorch and its libraries set up at
//!    first use. What could not be replayed is found out meanwhile: layers that draw
//!    random numbers, ask for their micro-batch, or have the host wait. See
//!    [`GraphAudit`]: such a stage continues without graphs.
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
mod shapes;
mod slot;

use std::collections::HashMap;
use std::rc::Rc;

use super::accumulator::Accumulator;
use super::border::{BorderGradients, SkipList};
use super::compute::Compute;
use super::graph_audit::{GraphAudit, GraphUse};
use super::inputs::Inputs;
use super::layers::SegmentOutput;
use super::live::{Half, Live};
use super::own_tensors::Address;
use super::pass::Pass;
use crate::streams::DeviceStreams;
use forward::{SEGMENT, UNIT};
use shapes::{Shapes, shape};
pub(super) use slot::Slot;

/// A stage's graphs.
#[derive(Debug)]
pub(super) struct Graphs {
    streams: Rc<DeviceStreams>,
    /// Whether the stage's outputs go only into its own loss.
    has_loss: bool,
    audit: Rc<GraphAudit>,
    shapes: Shapes,
    /// Kind of backward of micro-batches, by their index and count.
    halves: HashMap<(usize, usize), Half>,
    /// Slots without a micro-batch.
    #[expect(clippy::vec_box, reason = "flights have them in boxes")]
    free: Vec<Box<Slot>>,
    captured: u64,
    replayed: u64,
    /// Addresses of the stage's own tensors when graphs were captured, and which were trained.
    addresses: Vec<Address>,
}

/// Result of a forward.
#[derive(Debug)]
pub(super) enum Forward {
    Run(SegmentOutput),
    Replayed(SegmentOutput, Box<Slot>),
}

/// Result of a backward through a slot.
#[derive(Debug)]
pub(super) enum Backward {
    /// It cannot be replayed: the caller runs the backward of this graph.
    Run(Live),
    /// It is done; with the slot, if the weight pass needs it.
    Replayed(Option<Box<Slot>>),
}

impl Graphs {
    /// Refused where one of the layers is not graph-safe.
    pub(super) fn new(
        streams: Rc<DeviceStreams>,
        audit: Rc<GraphAudit>,
        compute: &Compute,
        has_loss: bool,
    ) -> Self {
        if let Some(layer) = compute.layers().not_graph_safe() {
            audit.refuse(|| {
                format!(
                    "layer `{layer}` does not say that its forward pass can be captured and replayed \
                     (`Layer::graph_safe`)"
                )
            });
        }
        Self {
            streams,
            has_loss,
            audit,
            shapes: Shapes::default(),
            halves: HashMap::new(),
            free: Vec::new(),
            captured: 0,
            replayed: 0,
            addresses: Vec::new(),
        }
    }

    /// Returns statistics of graph use.
    pub(super) fn usage(&self) -> GraphUse {
        GraphUse {
            captured: self.captured,
            replayed: self.replayed,
            eager: self.audit.why(),
        }
    }

    // A step, from its beginning to its end.

    /// A training step begins: graphs over parameters that have moved, or are trained now
    /// and were not, are thrown away.
    pub(super) fn begin_step(&mut self, compute: &Compute) -> anyhow::Result<()> {
        let own = compute.layers().own();
        let outdated = !self.free.is_empty() && self.addresses != own.addresses();
        if outdated || self.audit.is_refused() {
            self.drop_free_slots()?;
        }
        Ok(())
    }

    /// A training step ended well.
    pub(super) fn end_step(&mut self) {
        self.shapes.end_step();
    }

    /// A step is undone: of the slots that micro-batches were in, those that are whole can be
    /// used again, the others go.
    pub(super) fn abort(&mut self, slots: impl Iterator<Item = Box<Slot>>) {
        self.shapes.abort();
        let (whole, parts): (Vec<_>, Vec<_>) = slots.partition(|slot| slot.is_whole());
        self.free.extend(whole);
        if !parts.is_empty() {
            // An error here could not be reported: the step has failed already.
            let _ = self.streams.synchronize();
        }
    }

    /// Notes how a micro-batch comes back, for when it comes again: a schedule may take
    /// some in one pass and others in two halves, and a slot has graphs of one kind.
    pub(super) fn note_half(&mut self, pass: Pass<'_>, half: Half) {
        self.halves.insert(key(pass), half);
    }

    fn half(&self, pass: Pass<'_>) -> Half {
        self.halves.get(&key(pass)).copied().unwrap_or(Half::Joint)
    }

    // Passes.

    /// Runs the stage's layers, through graphs if the micro-batch's shape is captured.
    pub(super) fn forward(
        &mut self,
        compute: &mut Compute,
        inputs: Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Forward> {
        let Some(slot) = self.slot(compute, &inputs, pass)? else {
            let run = || compute.run(UNIT, &inputs, pass);
            return Ok(Forward::Run(self.detect_syncs(run)?));
        };
        drop(inputs);
        // The loss is here, and done with the outputs before the slot is used again.
        let output = slot.replay_forward(self.has_loss)?;
        self.replayed += 1;
        Ok(Forward::Replayed(output, slot))
    }

    /// Returns a slot filled with these inputs; `None` if the micro-batch must run without graphs.
    fn slot(
        &mut self,
        compute: &mut Compute,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Option<Box<Slot>>> {
        if self.audit.is_refused() || compute.segments().len() != 1 {
            return Ok(None);
        }
        // A graph has separate memory for each input value.
        if inputs.main().share_memory()? {
            self.refuse(|| "its inputs share memory with each other".to_owned())?;
            return Ok(None);
        }
        let shape = shape(inputs.all());
        let Some(shape) = shape.filter(|shape| self.shapes.is_captured(shape)) else {
            return Ok(None);
        };
        let half = self.half(pass);
        let mut free = self.free.iter();
        if let Some(place) = free.position(|slot| slot.serves(&shape, half)) {
            let slot = self.free.swap_remove(place);
            slot.fill(inputs)?;
            return Ok(Some(slot));
        }
        match Slot::capture(&self.streams, compute, inputs, (shape, half), pass) {
            Ok(slot) => {
                self.note_capture(compute);
                Ok(Some(Box::new(slot)))
            }
            Err(error) => {
                self.refuse(|| why_not(compute, &error))?;
                Ok(None)
            }
        }
    }

    /// Goes back through a slot, from these gradients to those of the inputs.
    pub(super) fn backward(
        &mut self,
        compute: &mut Compute,
        accumulator: &Accumulator,
        mut slot: Box<Slot>,
        half: Half,
        grads: &mut BorderGradients,
        pass: Pass<'_>,
    ) -> anyhow::Result<Backward> {
        let outgoing = compute.segments().get(UNIT).outgoing();
        let roots = grads.roots(outgoing);
        if roots.iter().all(Option::is_none) {
            // A micro-batch that counts nothing: no gradients flow back.
            drop(roots);
            drop(grads.take_roots(outgoing));
            let inputs = slot.inputs().main().iter();
            grads.set_inputs(inputs.map(|_| None).collect(), SkipList::new());
            self.free.push(slot);
            return Ok(Backward::Replayed(None));
        }
        if slot.half() != half {
            // Another schedule than before; the next step knows of it.
            return Ok(Backward::Run(self.eager_fallback(compute, slot, pass)?));
        }
        let ready = if slot.has_backward() {
            let fits = slot.fits(&roots);
            let why = "its gradients arrive in another form than before";
            fits.then_some(false).ok_or_else(|| why.to_owned())
        } else {
            let checked = self.audit.check();
            let captured = checked
                .and_then(|()| slot.capture_backward(&self.streams, compute, accumulator, &roots));
            captured
                .map(|()| true)
                .map_err(|error| why_not(compute, &error))
        };
        match ready {
            Ok(true) => self.note_capture(compute),
            Ok(false) => {}
            Err(why) => {
                self.refuse(|| why)?;
                return Ok(Backward::Run(self.eager_fallback(compute, slot, pass)?));
            }
        }
        drop(roots);
        slot.replay_backward((compute, accumulator), grads)?;
        self.replayed += 1;
        if half == Half::Input {
            return Ok(Backward::Replayed(Some(slot)));
        }
        self.free.push(slot);
        Ok(Backward::Replayed(None))
    }

    /// The weight pass of a slot.
    pub(super) fn backward_weight(
        &mut self,
        compute: &mut Compute,
        accumulator: &Accumulator,
        mut slot: Box<Slot>,
        pass: Pass<'_>,
    ) -> anyhow::Result<()> {
        if !slot.has_weight() {
            let checked = self.audit.check();
            let captured = checked.and_then(|()| slot.capture_weight(&self.streams, accumulator));
            if let Err(error) = captured {
                self.refuse(|| why_not(compute, &error))?;
                let roots = slot.copied_roots()?;
                let mut live = self.eager_fallback(compute, slot, pass)?;
                let mut grads = BorderGradients::from_roots(live.outgoing(), &roots);
                live.backward(Half::Input, &mut grads)?;
                return Ok(live.backward_weight()?);
            }
            self.note_capture(compute);
        }
        slot.replay_weight(accumulator)?;
        self.replayed += 1;
        self.free.push(slot);
        Ok(())
    }

    /// Recomputes the slot's forward without graphs, from the inputs that the slot still has.
    fn eager_fallback(
        &self,
        compute: &mut Compute,
        slot: Box<Slot>,
        pass: Pass<'_>,
    ) -> anyhow::Result<Live> {
        self.streams.synchronize()?;
        compute.recompute(SEGMENT, &slot.into_inputs(), pass)
    }

    fn note_capture(&mut self, compute: &Compute) {
        self.captured += 1;
        self.addresses = compute.layers().own().addresses();
    }

    /// Makes everything run without graphs from now on, for this reason.
    fn refuse(&mut self, why: impl FnOnce() -> String) -> anyhow::Result<()> {
        self.audit.refuse(why);
        self.drop_free_slots()
    }

    fn drop_free_slots(&mut self) -> anyhow::Result<()> {
        if !self.free.is_empty() {
            // Kernels still to run need their memory.
            self.streams.synchronize()?;
            self.free.clear();
        }
        Ok(())
    }

    /// Runs what would be part of a graph. In the last step before there is one, it must
    /// not have the host wait.
    pub(super) fn detect_syncs<T>(
        &self,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if self.audit.is_refused() || !self.shapes.in_last_warm_up() {
            return body();
        }
        let (done, waited) = self.streams.detect_host_sync(body)?;
        if waited {
            self.audit.refuse(|| {
                "an operator of its layers has the host wait for the device (it reads numbers, \
                 say), which none in a graph can"
                    .to_owned()
            });
        }
        Ok(done)
    }
}

fn key(pass: Pass<'_>) -> (usize, usize) {
    let micro_batches = pass.settings().mode.micro_batches();
    (micro_batches, pass.micro().index())
}

/// The reason for which a failed capture ends the use of graphs.
fn why_not(compute: &Compute, error: &anyhow::Error) -> String {
    match compute.layers().progress().name() {
        Some(layer) => format!("its capture failed in layer `{layer}`: {error:#}"),
        None => format!("its capture failed: {error:#}"),
    }
}
