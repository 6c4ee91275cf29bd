//! `B`, and its halves `I` and `W`, through graphs.

use std::rc::Rc;

use tch::Tensor;

use super::Graphs;
use super::copies::fresh_or_none;
use super::forward::{SEGMENT, spoil};
use super::slot::{Back, Part, Slot, Weight, fill_all, shape};
use crate::torch::stage::TorchStage;
use crate::torch::stage::activations::{Half, Held, Live, Transit};
use crate::torch::stage::forward::Pass;

/// Gradients, one a parameter or place of use.
type Gradients = Vec<Option<Tensor>>;

/// How a backward through a slot went.
#[derive(Debug)]
pub(in crate::torch::stage) enum Returned {
    /// The gradients of the inputs, and what is kept for the weight pass.
    Done(Vec<Option<Tensor>>, Option<Held>),
    /// It is to be done through this instead.
    Eager(Live),
}

impl TorchStage {
    /// Goes back through a slot. `main` and `transit` are as for a segment, and are
    /// touched only if it is done.
    pub(in crate::torch::stage) fn return_through(
        &mut self,
        mut slot: Box<Slot>,
        half: Half,
        main: &[Option<Tensor>],
        transit: &mut Transit,
        pass: Pass<'_>,
    ) -> anyhow::Result<Returned> {
        let outgoing = self.segments[SEGMENT].outgoing.clone();
        let skips = outgoing.iter().map(|skip| transit.get(skip)?.as_ref());
        let seeds: Vec<Option<&Tensor>> = skips.chain(main.iter().map(Option::as_ref)).collect();
        if seeds.iter().all(Option::is_none) {
            // Of a micro-batch that counts nothing: nothing goes back.
            let none = slot.inputs.main.iter().map(|_| None).collect();
            for skip in outgoing {
                transit.remove(&skip);
            }
            self.give_back(slot);
            return Ok(Returned::Done(none, None));
        }
        if slot.half != half {
            // Another schedule than before; the next step knows of it.
            return Ok(Returned::Eager(self.instead(slot, pass)?));
        }
        if let Err(why) = self.ready(&mut slot, &seeds) {
            self.refuse_graphs(|| why)?;
            return Ok(Returned::Eager(self.instead(slot, pass)?));
        }
        if let Some(back) = &slot.back {
            fill_all(back.seeds.iter().map(Option::as_ref), seeds.into_iter())?;
        }
        self.launch(&mut slot, Part::Back, pass)?;
        let Some(back) = &slot.back else {
            anyhow::bail!("a backward that was not captured");
        };
        self.accumulator.add_copies(&back.gradients)?;
        let (main, skips) = back.sent()?;
        for skip in outgoing {
            transit.remove(&skip);
        }
        transit.extend(skips);
        if half == Half::Input {
            return Ok(Returned::Done(main, Some(Held::Slot(slot))));
        }
        self.give_back(slot);
        Ok(Returned::Done(main, None))
    }

    /// Sees to it that the slot can be gone back through with these gradients.
    ///
    /// # Errors
    /// Why it cannot, nor can any after it.
    fn ready(&mut self, slot: &mut Slot, seeds: &[Option<&Tensor>]) -> Result<(), String> {
        match &slot.back {
            None => self
                .capture_back(slot, seeds)
                .map_err(|error| self.why_not(&error)),
            Some(back) if shape(seeds.iter().copied()).as_ref() == Some(&back.shape) => Ok(()),
            Some(_) => Err("its gradients arrive in another form than before".to_owned()),
        }
    }

    fn capture_back(&mut self, slot: &mut Slot, seeds: &[Option<&Tensor>]) -> anyhow::Result<()> {
        self.graphs.iter().try_for_each(Graphs::still_wanted)?;
        let Some(shape) = shape(seeds.iter().copied()) else {
            anyhow::bail!("a gradient has no strides");
        };
        let seeds: Vec<Option<Tensor>> = seeds
            .iter()
            .map(|seed| fresh_or_none(*seed))
            .collect::<Result<_, _>>()?;
        let mut live = slot
            .live
            .take()
            .ok_or_else(|| anyhow::anyhow!("a forward that was gone back through already"))?;
        let streams = Rc::clone(&self.streams);
        let sum = self.accumulator.take_gradients()?;
        let captured = streams.capture(slot.pool, || go_back(&mut live, slot.half, &seeds));
        let gradients = self.accumulator.take_gradients()?;
        self.accumulator.add_gradients(sum)?;
        let (graph, (main, mut transit)) = captured?;
        check_dense(&gradients)?;
        let skips = self.incoming.iter();
        let skips = skips.map(|skip| (*skip, transit.remove(skip).flatten()));
        let back = Back {
            graph,
            seeds,
            shape,
            main,
            skips: skips.collect(),
            gradients,
        };
        back.sent()?;
        if self.streams.rehearses() {
            let skips = back.skips.iter().map(|(_, value)| value);
            let all = back.main.iter().chain(skips).chain(&back.gradients);
            spoil(all.map(Option::as_ref))?;
        } else if slot.half == Half::Input {
            slot.live = Some(live);
        }
        slot.back = Some(back);
        self.note_capture();
        Ok(())
    }

    /// The weight pass of a slot.
    pub(in crate::torch::stage) fn weigh_through(
        &mut self,
        mut slot: Box<Slot>,
        pass: Pass<'_>,
    ) -> anyhow::Result<()> {
        if slot.weight.is_none()
            && let Err(error) = self.capture_weight(&mut slot, pass)
        {
            let why = self.why_not(&error);
            self.refuse_graphs(|| why)?;
            let seeds = slot.back.as_ref().map(|back| copied(&back.seeds));
            let mut live = self.instead(slot, pass)?;
            go_back(
                &mut live,
                Half::Input,
                &seeds.transpose()?.unwrap_or_default(),
            )?;
            return Ok(live.graph.backward_weight()?);
        }
        self.launch(&mut slot, Part::Weight, pass)?;
        if let Some(weight) = &slot.weight {
            self.accumulator.add_copies(&weight.gradients)?;
        }
        self.give_back(slot);
        Ok(())
    }

    fn capture_weight(&mut self, slot: &mut Slot, pass: Pass<'_>) -> anyhow::Result<()> {
        self.graphs.iter().try_for_each(Graphs::still_wanted)?;
        let mut live = if self.streams.rehearses() {
            self.half_back(slot, pass)?
        } else {
            let live = slot.live.take();
            live.ok_or_else(|| anyhow::anyhow!("a weight pass without an input pass"))?
        };
        let streams = Rc::clone(&self.streams);
        let sum = self.accumulator.take_gradients()?;
        let captured = streams.capture(slot.pool, || Ok(live.graph.backward_weight()?));
        let gradients = self.accumulator.take_gradients()?;
        self.accumulator.add_gradients(sum)?;
        let (graph, ()) = captured?;
        check_dense(&gradients)?;
        if self.streams.rehearses() {
            spoil(gradients.iter().map(Option::as_ref))?;
        }
        slot.weight = Some(Weight { graph, gradients });
        self.note_capture();
        Ok(())
    }

    /// What the slot's forward would have left without graphs: the forward once more,
    /// from the inputs that the slot still has.
    fn instead(&mut self, slot: Box<Slot>, pass: Pass<'_>) -> anyhow::Result<Live> {
        self.streams.synchronize()?;
        let Slot { inputs, .. } = *slot;
        self.recompute(SEGMENT, &inputs, pass)
    }

    fn give_back(&mut self, slot: Box<Slot>) {
        if let Some(graphs) = &mut self.graphs {
            graphs.give_back(slot);
        }
    }

    /// Where there is no device: does what the graph of the backward holds.
    pub(super) fn rehearse_back(&mut self, slot: &mut Slot, pass: Pass<'_>) -> anyhow::Result<()> {
        let mut live = self.rehearsed(slot, pass)?;
        let Some(back) = &slot.back else {
            anyhow::bail!("a backward that was not captured");
        };
        let sum = self.accumulator.take_gradients()?;
        let (main, mut transit) = go_back(&mut live, slot.half, &back.seeds)?;
        let gradients = self.accumulator.take_gradients()?;
        self.accumulator.add_gradients(sum)?;
        fill_options(&back.main, &main)?;
        fill_options(&back.gradients, &gradients)?;
        for (skip, to) in &back.skips {
            let from = transit.remove(skip).flatten();
            fill_options(std::slice::from_ref(to), &[from])?;
        }
        if slot.half == Half::Input {
            slot.live = Some(live);
        }
        Ok(())
    }

    /// The same for the weight pass.
    pub(super) fn rehearse_weight(
        &mut self,
        slot: &mut Slot,
        pass: Pass<'_>,
    ) -> anyhow::Result<()> {
        let mut live = self.half_back(slot, pass)?;
        let sum = self.accumulator.take_gradients()?;
        live.graph.backward_weight()?;
        let own = self.accumulator.take_gradients()?;
        self.accumulator.add_gradients(sum)?;
        let weight = slot.weight.as_ref();
        fill_options(weight.map_or(&[], |weight| &weight.gradients), &own)
    }

    /// Where there is no device: the autograd graph after its input pass.
    fn half_back(&mut self, slot: &mut Slot, pass: Pass<'_>) -> anyhow::Result<Live> {
        if let Some(live) = slot.live.take() {
            return Ok(live);
        }
        let mut live = self.rehearsed(slot, pass)?;
        if let Some(back) = &slot.back {
            go_back(&mut live, Half::Input, &back.seeds)?;
        }
        Ok(live)
    }
}

/// Runs autograd from gradients of skips that leave, then of the outputs; gives those of
/// the inputs and of skips that arrive.
fn go_back(
    live: &mut Live,
    half: Half,
    seeds: &[Option<Tensor>],
) -> anyhow::Result<(Gradients, Transit)> {
    let handle = |seed: &Option<Tensor>| seed.as_ref().map(Tensor::shallow_clone);
    let mut seeds = seeds.iter().map(handle);
    let mut transit: Transit = live.outgoing.iter().copied().zip(seeds.by_ref()).collect();
    let main = live.backward(half, seeds.collect(), &mut transit)?;
    Ok((main, transit))
}

fn copied(values: &[Option<Tensor>]) -> anyhow::Result<Vec<Option<Tensor>>> {
    let copies = values.iter().map(|value| fresh_or_none(value.as_ref()));
    Ok(copies.collect::<Result<_, _>>()?)
}

fn fill_options(to: &[Option<Tensor>], from: &[Option<Tensor>]) -> anyhow::Result<()> {
    let (to, from) = (
        to.iter().map(Option::as_ref),
        from.iter().map(Option::as_ref),
    );
    Ok(fill_all(to, from)?)
}

/// Sparse gradients change their shape from one micro-batch to the next.
fn check_dense(gradients: &[Option<Tensor>]) -> anyhow::Result<()> {
    let sparse = gradients.iter().flatten().any(Tensor::is_sparse);
    anyhow::ensure!(!sparse, "a parameter's gradient is sparse");
    Ok(())
}
