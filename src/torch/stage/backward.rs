//! `B`, its halves `I` and `W`, and `R`.

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::TorchStage;
use super::activations::{Flight, Half, Held, Live, Transit};
use super::forward::Pass;
use super::graphs::Returned;
use crate::torch::gradients::finite;
use crate::torch::step::StepSettings;
use crate::torch::values::Values;

impl TorchStage {
    /// `B` or `I`: takes one value an edge that carries a gradient out of the stage,
    /// gives one for each into it.
    pub(super) fn backward(
        &mut self,
        half: Half,
        micro: MicroId,
        grads: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let mut flight = self.take_flight(micro)?;
        let mut transit = Transit::new();
        let mut grads = grads.into_iter();
        let mut main = if self.last {
            vec![None]
        } else {
            grads.next().unwrap_or_default().into_iter().collect()
        };
        for (&skip, grad) in self.outgoing.iter().zip(grads) {
            transit.insert(skip, grad.into_iter().next().flatten());
        }
        if let Some(mut loss) = flight.loss.take() {
            main = self.go_back(&mut loss, Half::Joint, main, &mut transit)?;
        }
        let segments = std::mem::take(&mut flight.segments);
        let pass = again(micro, settings);
        self.note_half(half, pass);
        if half == Half::Joint {
            let turn = self.accumulator.begin_turn(micro.index())?;
            drop(self.go_through(segments, half, &mut main, &mut transit, pass)?);
            self.accumulator.end_turn(turn)?;
        } else {
            flight.segments = self.go_through(segments, half, &mut main, &mut transit, pass)?;
            self.flights.insert(micro, flight);
        }
        self.check_gradients(settings, main.iter().flatten())?;
        Ok(self.sent_gradients(main, transit, settings))
    }

    /// Goes back through the segments from the last to the first; gives, in that
    /// order, what the weight pass needs of them.
    fn go_through(
        &mut self,
        segments: Vec<Held>,
        half: Half,
        main: &mut Vec<Option<Tensor>>,
        transit: &mut Transit,
        pass: Pass<'_>,
    ) -> anyhow::Result<Vec<Held>> {
        let mut kept = Vec::new();
        for (number, held) in segments.into_iter().enumerate().rev() {
            let mut live = match held {
                Held::Slot(slot) => match self.return_through(slot, half, main, transit, pass)? {
                    Returned::Done(grads, rest) => {
                        *main = grads;
                        kept.extend(rest);
                        continue;
                    }
                    Returned::Eager(live) => live,
                },
                held => match self.inputs(held)? {
                    Ok(inputs) => self.recompute(number, &inputs, pass)?,
                    Err(live) => live,
                },
            };
            let grads = std::mem::take(main);
            *main = self.heeding(|stage| stage.go_back(&mut live, half, grads, transit))?;
            if half == Half::Input {
                kept.push(Held::Live(live));
            }
        }
        Ok(kept)
    }

    /// `W`: the parameters get what `I` left for them.
    pub(super) fn backward_weight(
        &mut self,
        micro: MicroId,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let flight = self.take_flight(micro)?;
        let turn = self.accumulator.begin_turn(micro.index())?;
        for held in flight.segments {
            let mut live = match held {
                Held::Live(live) => live,
                Held::Slot(slot) => {
                    self.weigh_through(slot, again(micro, settings))?;
                    continue;
                }
                _ => anyhow::bail!("micro-batch {micro} has no input pass behind it"),
            };
            self.heeding(|stage| {
                let done = live.graph.backward_weight();
                stage.blame(&live, done)
            })?;
        }
        self.accumulator.end_turn(turn)?;
        self.check_gradients(settings, std::iter::empty())?;
        Ok(Vec::new())
    }

    /// `R`: the graph that the backward to come will begin with.
    pub(super) fn recompute_ahead(
        &mut self,
        micro: MicroId,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let mut flight = self.take_flight(micro)?;
        let kept = |held: &Held| !matches!(held, Held::Live(_) | Held::Slot(_));
        // Segments before it wait for their turn: together they would take the
        // memory that recomputing saves.
        if let Some(number) = flight.segments.iter().rposition(kept) {
            let Ok(inputs) = self.inputs(flight.segments.remove(number))? else {
                anyhow::bail!("a segment that is kept is not to be recomputed");
            };
            let live = self.recompute(number, &inputs, again(micro, settings))?;
            flight.segments.insert(number, Held::Live(live));
        }
        self.flights.insert(micro, flight);
        Ok(Vec::new())
    }

    fn take_flight(&mut self, micro: MicroId) -> anyhow::Result<Flight> {
        self.flights
            .remove(&micro)
            .ok_or_else(|| anyhow::anyhow!("micro-batch {micro} has no forward to go back through"))
    }

    fn go_back(
        &mut self,
        live: &mut Live,
        half: Half,
        grads: Vec<Option<Tensor>>,
        transit: &mut Transit,
    ) -> anyhow::Result<Vec<Option<Tensor>>> {
        self.present(live)?;
        let done = live.backward(half, grads, transit);
        self.blame(live, done)
    }

    /// Names the layer whose backward failed.
    fn blame<T>(
        &mut self,
        live: &Live,
        done: Result<T, crate::torch::TorchError>,
    ) -> anyhow::Result<T> {
        done.map_err(|error| {
            match live.graph.layer() {
                Some(number) => self.running.layer(number),
                None => self.running.nothing(),
            }
            error.into()
        })
    }

    /// One value for each edge into the stage along which gradients travel.
    fn sent_gradients(
        &self,
        main: Vec<Option<Tensor>>,
        mut transit: Transit,
        settings: &StepSettings,
    ) -> Vec<Values> {
        let mut sent = Vec::new();
        if !self.first || settings.mode.wants_input_gradient() {
            sent.push(main.into_iter().collect());
        }
        sent.extend(self.incoming.iter().map(|skip| {
            let grad = transit.remove(skip).flatten();
            [grad].into_iter().collect::<Values>()
        }));
        sent
    }

    /// Where non-finite numbers are to fail the step: are there any?
    fn check_gradients<'a>(
        &mut self,
        settings: &StepSettings,
        mut inputs: impl Iterator<Item = &'a Tensor>,
    ) -> anyhow::Result<()> {
        if !settings.mode.fails_on_gradients() {
            return Ok(());
        }
        if let Some(name) = self.accumulator.first_non_finite()? {
            let owns = |layer: &crate::torch::sequential::BuiltLayer| {
                name.strip_prefix(layer.name.as_str())
                    .is_some_and(|rest| rest.starts_with('.'))
            };
            if let Some(number) = self.layers.iter().position(owns) {
                self.running.layer(number);
            }
            anyhow::bail!("the gradient of `{name}` is not finite (NaN or infinity)");
        }
        if !inputs.try_fold(true, |all, grad| anyhow::Ok(all && finite(grad)?))? {
            self.running.layer(0);
            anyhow::bail!("the gradient of the stage's input is not finite (NaN or infinity)");
        }
        Ok(())
    }
}

fn again(micro: MicroId, settings: &StepSettings) -> Pass<'_> {
    Pass {
        micro,
        settings,
        recomputing: true,
        again: false,
        stows: None,
    }
}
