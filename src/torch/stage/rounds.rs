//! Rounds of replicas that train alone, on a stage: they end with the [outer step](super::outer).

use std::collections::BTreeMap;

use tch::Tensor;

use super::exchange::Sums;
use super::outer::{Next, OuterStep, mean, step};
use super::torch_stage::TorchStage;
use crate::copies;
use crate::error::TorchError;
use crate::optim::Parts;
use crate::values::Values;

impl TorchStage {
    /// The places of the parameters that a replica owns and that are trained.
    fn trained_of(&self, owner: usize) -> Vec<usize> {
        let parameters = self.passes().accumulator().parameters().iter().enumerate();
        let owners = self.copies().owners(self.passes().accumulator());
        let own =
            parameters.filter(|(place, (_, own))| owners[*place] == owner && own.requires_grad());
        own.map(|(place, _)| place).collect()
    }

    /// Goes on from what checkpoints have of the parameters that this copy owns, by their places.
    pub(super) fn remember_outer(&mut self, all: BTreeMap<usize, Parts>) -> anyhow::Result<()> {
        let copies = self.copies();
        if copies.sums != Sums::Alone {
            return Ok(());
        }
        let (owners, own) = (copies.owners(self.passes().accumulator()), copies.replica);
        for (place, parts) in all.into_iter().filter(|(place, _)| owners[*place] == own) {
            let parameter = self.parameter(place).shallow_clone();
            self.outer_mut().remember(place, &parameter, &parts)?;
        }
        Ok(())
    }

    fn parameter(&self, place: usize) -> &Tensor {
        &self.passes().accumulator().parameters()[place].1
    }

    /// A round begins with the update that is being prepared: keeps the weights.
    pub(super) fn begin_round(&mut self) -> anyhow::Result<()> {
        let start = self.trained_of(self.replica()).into_iter();
        let start = start.map(|place| Ok((place, copy(self.parameter(place))?)));
        let start: BTreeMap<_, _> = start.collect::<Result<_, TorchError>>()?;
        self.outer_mut().start = start;
        Ok(())
    }

    /// Ends a round: returns for each of these replicas the values of the parameters that it owns,
    /// and for replica 0 the buffers.
    pub(crate) fn give_together(&mut self, others: &[usize]) -> anyhow::Result<Vec<Values>> {
        self.passes_mut().commit_step()?;
        let own = |owner: &usize| {
            let weights = self.trained_of(*owner).into_iter();
            let weights = weights.map(|place| Some(self.parameter(place).detach()));
            let buffers = self.passes().compute().buffers().named().iter();
            let buffers = buffers.filter(|_| *owner == 0);
            weights
                .chain(buffers.map(|(_, own)| Some(own.detach())))
                .collect()
        };
        Ok(others.iter().map(own).collect())
    }

    /// The outer step of what this copy owns, of which the other replicas have given theirs, in
    /// their order. Nothing changes yet.
    pub(crate) fn bring_together(
        &mut self,
        outer: OuterStep,
        from: Vec<(usize, Values)>,
    ) -> anyhow::Result<()> {
        self.acts(c"the outer step");
        let own = self.replica();
        let places = self.trained_of(own);
        let given = self.give_together(&[own])?;
        let mut all: Vec<Values> = from.into_iter().map(|(_, values)| values).collect();
        all.splice(own..own, given);
        let mut guards = Vec::new();
        for tensor in all.iter().flat_map(Values::present) {
            guards.push(self.streams().uses(tensor)?);
        }
        let device = self.passes().compute().layers().device();
        let at = |index: usize| -> Result<Vec<Tensor>, TorchError> {
            let of = |values: &Values| match values.get(index) {
                Some(tensor) => Ok(tensor.f_to_device(device)?),
                None => Err(TorchError::new(
                    "a replica gave fewer weights than are owned here",
                )),
            };
            all.iter().map(of).collect()
        };
        let mut next = Next {
            weights: BTreeMap::new(),
            momentum: BTreeMap::new(),
            buffers: BTreeMap::new(),
        };
        let outer_state = self.outer();
        let _no_grad = tch::no_grad_guard();
        for (index, place) in places.iter().enumerate() {
            let Some(start) = outer_state.start.get(place) else {
                anyhow::bail!("a parameter that was not trained when the round began");
            };
            let deltas = at(index)?.into_iter().map(|own| start.f_sub(&own));
            let mean = mean(deltas.collect::<Result<_, _>>()?)?;
            let (weights, momentum) = step(outer, start, outer_state.momentum.get(place), &mean)?;
            next.weights.insert(*place, weights);
            next.momentum.extend(momentum.map(|own| (*place, own)));
        }
        let buffers = self.passes().compute().buffers().named().len();
        for place in (0..buffers).filter(|_| own == 0) {
            let copies = at(places.len() + place)?;
            let new = match copies.first() {
                Some(first) if first.is_floating_point() => mean(copies)?,
                _ => copies[0].f_detach()?,
            };
            next.buffers.insert(place, new);
        }
        self.outer_mut().next = Some(next);
        Ok(())
    }

    /// Returns the result of the outer step, for every other replica.
    pub(crate) fn brought_together(&self) -> Values {
        let next = self.outer().next.iter();
        next.flat_map(|next| next.weights.values().chain(next.buffers.values()))
            .map(|own| Some(own.shallow_clone()))
            .collect()
    }

    /// Sets the result of another replica's outer step.
    pub(crate) fn go_on_together(&mut self, owner: usize, new: &Values) -> anyhow::Result<()> {
        self.acts(c"the weights of another replica");
        let weights = self.trained_of(owner).into_iter();
        let weights = weights.map(|place| self.parameter(place));
        let buffers = self.passes().compute().buffers().named().iter();
        let buffers = buffers.filter(|_| owner == 0).map(|(_, own)| own);
        let all: Vec<&Tensor> = weights.chain(buffers).collect();
        anyhow::ensure!(
            all.len() == new.len(),
            "replica {owner} gave {} tensors, and owns {}",
            new.len(),
            all.len()
        );
        for (own, new) in all.into_iter().zip(new.present()) {
            let _shared = self.streams().uses(new)?;
            copies::fill(own, new)?;
        }
        Ok(())
    }

    /// Begins the next round, once all copies have the result.
    pub(crate) fn end_round(&mut self) -> anyhow::Result<()> {
        let Some(next) = self.outer_mut().next.take() else {
            return Ok(());
        };
        for (place, weights) in &next.weights {
            copies::fill(self.parameter(*place), weights)?;
        }
        let buffers = self.passes().compute().buffers().named();
        for (place, buffer) in &next.buffers {
            copies::fill(&buffers[*place].1, buffer)?;
        }
        let outer = self.outer_mut();
        outer.momentum.extend(next.momentum);
        outer.start.clear();
        Ok(())
    }
}

fn copy(tensor: &Tensor) -> Result<Tensor, TorchError> {
    copies::same_strides(&tensor.f_detach()?)
}
