//! The gradients of a stage's parameters, within a step and between steps.
//!
//! A step's gradients accumulate in the parameters alone: earlier steps' gradients are set aside
//! until the step is certain to count on every stage ([`Accumulator::commit`]), or restored if it
//! does not ([`Accumulator::undo`]). Within the step, micro-batches are added in order, whatever
//! the order of their backwards in the schedule ([`Accumulator::begin_micro_batch`]). For a tree, a
//! leaf's sum is taken out of the parameters when it is complete, and the total is put back at the
//! end ([`Leaves`]). If replicas of the pipeline share the tree, that is the sum of the replica's
//! own leaves, which an exchange takes ([`Accumulator::take_share`]) and returns as the total.

mod tied;

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use tch::{Device, Tensor};

use super::leaves::Leaves;
use crate::error::TorchError;
use crate::gradients::{first_non_finite, norms, norms_there};
use crate::sequential::bytes;
use crate::streams::DeviceStreams;
use crate::{copies, ffi};

/// One gradient per parameter, then one per tied copy; `None` if none arrived.
pub(super) type Gradients = Vec<Option<Tensor>>;

/// The places and names of gradients, and their norms.
type NamedNorms = (Vec<(usize, String)>, Tensor);

/// The gradients of a stage's parameters (gradient accumulation).
#[doc(alias = "gradient accumulation")]
#[derive(Debug)]
pub(crate) struct Accumulator {
    device: Device,
    streams: Rc<DeviceStreams>,
    /// Named by layer and parameter.
    parameters: Vec<(String, Tensor)>,
    /// Parameters that are copies of another layer's: tied weights.
    tied: Vec<(String, Tensor)>,
    /// Gradients of earlier steps, one entry per parameter; set aside while a step runs, so that a
    /// failed step can restore them and this step's gradients can be scaled alone.
    previous: Vec<Option<Tensor>>,
    /// Micro-batch whose gradients are added next.
    next: usize,
    /// Gradients of later micro-batches whose backward ran before its.
    early: HashMap<usize, Gradients>,
    /// Tree of the sums, if it has more than one leaf.
    leaves: Option<Leaves<Gradients>>,
    /// 1 on the stage's device where the last step does not count; see
    /// `src/torch/pipeline/finite_check.rs`.
    found_inf: Option<Tensor>,
}

/// The backward of one micro-batch, from [`Accumulator::begin_micro_batch`] to
/// [`Accumulator::end_micro_batch`].
#[derive(Debug)]
#[must_use = "the gradients of other micro-batches are set aside until it has ended"]
pub(super) struct MicroBatchGradients {
    micro: usize,
    /// The sums of the other micro-batches, where this one comes early.
    others: Option<Gradients>,
}

impl Accumulator {
    /// `tree`: how many leaves the sums of micro-batches have, a power of two; `own`: those of
    /// the micro-batches that come here.
    pub(super) fn new(
        device: Device,
        streams: Rc<DeviceStreams>,
        parameters: Vec<(String, Tensor)>,
        (tree, own): (usize, Range<usize>),
    ) -> Self {
        Self {
            device,
            streams,
            parameters,
            tied: Vec::new(),
            previous: Vec::new(),
            next: 0,
            early: HashMap::new(),
            leaves: (tree > 1).then(|| Leaves::new(tree, own)),
            found_inf: None,
        }
    }

    /// Names and handles of the parameters, by layer and name.
    pub(crate) fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    /// The parameters, then the tied copies.
    fn with_tied(&self) -> impl Iterator<Item = &(String, Tensor)> {
        self.parameters.iter().chain(&self.tied)
    }

    /// Returns the bytes of existing gradients, including those of complete leaves.
    pub(super) fn bytes(&self) -> u64 {
        let grads = self.with_tied().map(|(_, parameter)| parameter.grad());
        let grads = grads.filter(Tensor::defined);
        let in_tree = self.in_tree().map(|(_, grad)| bytes(grad));
        grads.map(|grad| bytes(&grad)).chain(in_tree).sum()
    }

    /// The gradients of complete leaves that wait for others, with the places of their
    /// parameters.
    fn in_tree(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let sets = self.leaves.iter().flat_map(Leaves::waiting);
        sets.flat_map(|set| {
            let placed = set.iter().enumerate();
            placed.filter_map(|(place, grad)| Some((place, grad.as_ref()?)))
        })
    }

    /// Begins a training step of so many micro-batches: sets the gradients of earlier steps aside,
    /// so that this step's stand alone.
    pub(super) fn set_aside(&mut self, micro_batches: usize) -> Result<(), TorchError> {
        self.next = 0;
        self.early.clear();
        if let Some(leaves) = &mut self.leaves {
            leaves.begin(micro_batches);
            self.next = leaves.first();
        }
        let parameters = self.parameters.iter();
        self.previous = parameters
            .map(|(_, parameter)| ffi::take_grad(parameter))
            .collect::<Result<_, _>>()?;
        let mut tied = self.tied.iter();
        tied.try_for_each(|(_, copy)| ffi::set_grad(copy, None))
    }

    /// The backward of micro-batch `micro` is about to add its gradients to the parameters.
    /// Under a schedule that does not go through the micro-batches in order, the gradients
    /// of one that comes early wait for those before it: the sums have the same bits under
    /// every schedule.
    pub(super) fn begin_micro_batch(
        &self,
        micro: usize,
    ) -> Result<MicroBatchGradients, TorchError> {
        let early = micro != self.next;
        let others = early.then(|| self.take_gradients()).transpose()?;
        Ok(MicroBatchGradients { micro, others })
    }

    /// The backward has added them.
    pub(super) fn end_micro_batch(&mut self, gradients: MicroBatchGradients) -> anyhow::Result<()> {
        if let Some(others) = gradients.others {
            let own = self.take_gradients()?;
            self.early.insert(gradients.micro, own);
            return self.add_gradients(others);
        }
        self.added()?;
        while let Some(waiting) = self.early.remove(&self.next) {
            self.add_gradients(waiting)?;
            self.added()?;
        }
        Ok(())
    }

    /// The gradients of micro-batch `next` are in the parameters; its leaf may be complete.
    fn added(&mut self) -> anyhow::Result<()> {
        self.next += 1;
        let Some(leaves) = &self.leaves else {
            return Ok(());
        };
        if !leaves.end_at(self.next) {
            return Ok(());
        }
        let leaf = self.take_gradients()?;
        let leaves = self.leaves.as_mut();
        let all = leaves.map(|leaves| leaves.close(self.next, leaf, added_sets));
        match all.transpose()?.flatten() {
            Some(all) => self.add_gradients(all),
            None => Ok(()),
        }
    }

    /// The step's last backward here is done. Takes the sums of the own leaves out of the
    /// parameters and tied copies.
    pub(super) fn take_share(&mut self) -> anyhow::Result<Gradients> {
        self.finish_leaves()?;
        Ok(self.take_gradients()?)
    }

    /// Does the same, but leaves the sums in the parameters and tied copies.
    pub(super) fn finish_leaves(&mut self) -> anyhow::Result<()> {
        let finished = self.leaves.as_mut();
        let finished = finished.map(|leaves| leaves.finish(added_sets));
        if let Some(sum) = finished.transpose()?.flatten() {
            self.add_gradients(sum)?;
        }
        Ok(())
    }

    /// Gives the parameters and tied copies, whose gradients have been taken, those of all
    /// replicas.
    pub(super) fn set_sums(&self, sums: &[Option<Tensor>]) -> Result<(), TorchError> {
        let all = self.with_tied().zip(sums);
        for ((_, parameter), sum) in all {
            ffi::set_grad(parameter, sum.as_ref())?;
        }
        Ok(())
    }

    /// Returns how often each parameter and tied copy has been written to.
    pub(super) fn changes(&self) -> Result<Vec<i64>, TorchError> {
        let all = self.with_tied();
        all.map(|(_, parameter)| ffi::changes(parameter)).collect()
    }

    /// The name of a parameter or tied copy, by its place among these.
    pub(super) fn name(&self, place: usize) -> &str {
        let named = self.with_tied().nth(place);
        named.map_or("", |(name, _)| name)
    }

    /// The place of a parameter or tied copy among these.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.with_tied().position(|(own, _)| own == name)
    }

    /// The places of the parameters that an update changes: those with a gradient that are not
    /// frozen.
    pub(super) fn to_update(&self) -> Vec<usize> {
        let all = self.parameters.iter().enumerate();
        let chosen = all.filter(|(_, (_, own))| own.requires_grad() && own.grad().defined());
        chosen.map(|(place, _)| place).collect()
    }

    /// Bytes of each parameter and tied copy, in the order of their gradients.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.with_tied().map(|(_, parameter)| bytes(parameter))
    }

    /// Moves the gradients out of the parameters and tied copies.
    fn take_gradients(&self) -> Result<Gradients, TorchError> {
        let all = self.with_tied();
        all.map(|(_, parameter)| ffi::take_grad(parameter))
            .collect()
    }

    /// Sets the parameters' gradients aside while `body` adds others. Returns those that it
    /// added, without the earlier ones.
    pub(super) fn alone<T>(&self, body: impl FnOnce() -> T) -> anyhow::Result<(T, Gradients)> {
        let sum = self.take_gradients()?;
        let done = body();
        let own = self.take_gradients()?;
        self.add_gradients(sum)?;
        Ok((done, own))
    }

    /// Adds gradients, one at a time: the first ones are set.
    fn add_gradients(&self, grads: Gradients) -> anyhow::Result<()> {
        for ((_, parameter), grad) in self.with_tied().zip(grads) {
            let Some(grad) = grad else { continue };
            let sum = parameter.grad();
            if sum.defined() {
                ffi::add(&[sum], &[grad])?;
            } else {
                ffi::set_grad(parameter, Some(&grad))?;
            }
        }
        Ok(())
    }

    /// Adds copies of gradients as autograd adds those of a micro-batch, in one call: the
    /// first ones are set, to memory of their own.
    pub(super) fn add_copies(&self, grads: &[Option<Tensor>]) -> anyhow::Result<()> {
        let (mut sums, mut more) = (Vec::new(), Vec::new());
        for ((_, parameter), grad) in self.with_tied().zip(grads) {
            let Some(grad) = grad else { continue };
            let sum = parameter.grad();
            if sum.defined() {
                sums.push(sum);
                more.push(grad.shallow_clone());
            } else {
                ffi::set_grad(parameter, Some(&copies::same_strides(grad)?))?;
            }
        }
        Ok(ffi::add(&sums, &more)?)
    }

    /// Puts the earlier gradients back in place of this step's.
    pub(super) fn undo(&mut self) {
        self.found_inf = None;
        self.early.clear();
        if let Some(leaves) = &mut self.leaves {
            leaves.clear();
        }
        // The calls only move handles. An error could not be reported: the step has failed
        // already, and its own error says more.
        let previous = std::mem::take(&mut self.previous);
        for ((_, parameter), previous) in self.parameters.iter().zip(previous) {
            let _ = ffi::set_grad(parameter, previous.as_ref());
        }
        for (_, copy) in &self.tied {
            let _ = ffi::set_grad(copy, None);
        }
    }

    /// The step is certain to count on every stage: its gradients are added to those of
    /// earlier steps.
    pub(super) fn commit(&mut self) -> Result<(), TorchError> {
        let previous = std::mem::take(&mut self.previous);
        for ((_, parameter), previous) in self.parameters.iter().zip(previous) {
            let Some(earlier) = previous else { continue };
            if let Some(new) = ffi::take_grad(parameter)? {
                ffi::add(std::slice::from_ref(&earlier), &[new])?;
            }
            ffi::set_grad(parameter, Some(&earlier))?;
        }
        Ok(())
    }

    // Facts about a step that only the device knows.

    /// The step that just ended does not count where `found_inf` is 1, on whatever device;
    /// its gradients are yet to be multiplied with the factor.
    #[doc(alias = "found_inf")]
    #[doc(alias = "GradScaler")]
    pub(crate) fn defer(
        &mut self,
        found_inf: &Tensor,
        factor: Option<&Tensor>,
    ) -> anyhow::Result<()> {
        let _shared = self.streams.uses(found_inf)?;
        if let Some(factor) = factor {
            self.scale_by(factor)?;
        }
        self.found_inf = Some(found_inf.f_to_device(self.device)?);
        Ok(())
    }

    /// Returns whether only the device knows whether the last step counts.
    pub(super) fn is_deferred(&self) -> bool {
        self.found_inf.is_some()
    }

    /// 1 where the last step does not count; none where that is known already.
    pub(super) fn found_inf(&self) -> Option<Tensor> {
        self.found_inf.as_ref().map(Tensor::shallow_clone)
    }

    /// Forgets the check once it is resolved.
    pub(super) fn forget_found_inf(&mut self) {
        self.found_inf = None;
    }

    /// Waits for the device where only it knows whether the last step counts. Gives whether
    /// it does not.
    pub(super) fn wait_for_found_inf(&mut self) -> Result<bool, TorchError> {
        let found = self.found_inf.as_ref();
        let found = found.map(|found| found.f_double_value(&[])).transpose()?;
        // Not resolved before it could be read.
        self.found_inf = None;
        Ok(found.is_some_and(|found| found != 0.0))
    }

    /// Returns whether gradients of earlier steps wait to be added to this step's.
    pub(super) fn has_previous(&self) -> bool {
        self.previous.iter().any(Option::is_some)
    }

    // Gradients as numbers.

    fn present(&self) -> Vec<Tensor> {
        self.placed().1
    }

    /// Returns the existing gradients, with their parameters' indices.
    fn placed(&self) -> (Vec<usize>, Vec<Tensor>) {
        let grads = self.parameters.iter().map(|(_, p)| p.grad());
        let placed = grads.enumerate().filter(|(_, grad)| grad.defined());
        placed.unzip()
    }

    /// The norm of each gradient with the place of its parameter, in the order of these.
    pub(crate) fn norms(&self) -> Result<Vec<(usize, f64)>, TorchError> {
        let (places, grads) = self.placed();
        Ok(places.into_iter().zip(norms(&grads)?).collect())
    }

    /// The places, and the norms as a tensor on the stage's device, for which the host does not
    /// wait; none where that cannot be.
    pub(crate) fn norms_on_device(&self) -> Result<Option<(Vec<usize>, Tensor)>, TorchError> {
        let (places, grads) = self.placed();
        let norms = norms_there(&grads, self.device)?;
        Ok(norms.map(|norms| (places, norms)))
    }

    /// The places and names of all gradients, those of tied copies included, and their norms as a
    /// tensor on the stage's device. None where the host has to look at the gradients.
    pub(super) fn named_norms_on_device(&self) -> Result<Option<NamedNorms>, TorchError> {
        let all = self.with_tied().enumerate();
        let grads = all.map(|(place, (name, own))| ((place, name.clone()), own.grad()));
        let (names, grads): (Vec<_>, Vec<_>) = grads.filter(|(_, grad)| grad.defined()).unzip();
        let norms = norms_there(&grads, self.device)?;
        Ok(norms.map(|norms| (names, norms)))
    }

    /// A parameter whose gradient is not finite: its place, and its name.
    pub(crate) fn first_non_finite(&self) -> Result<Option<(usize, String)>, TorchError> {
        let all = self.with_tied().map(|(_, parameter)| parameter.grad());
        let all = all.enumerate().filter(|(_, grad)| grad.defined());
        let in_tree = self.in_tree();
        let in_tree = in_tree.map(|(place, grad)| (place, grad.shallow_clone()));
        let (places, grads): (Vec<usize>, Vec<Tensor>) = all.chain(in_tree).unzip();
        let first = first_non_finite(&grads)?.map(|at| places[at]);
        Ok(first.map(|place| (place, self.name(place).to_owned())))
    }

    /// Multiplies all gradients.
    pub(crate) fn scale(&self, factor: f64) -> Result<(), TorchError> {
        ffi::scale(&self.present(), factor)
    }

    /// Multiplies all gradients with a number on some device.
    pub(crate) fn scale_by(&self, factor: &Tensor) -> anyhow::Result<()> {
        let _shared = self.streams.uses(factor)?;
        let factor = factor.f_to_device(self.device)?;
        Ok(ffi::scale_by(&self.present(), &factor)?)
    }

    /// Clears the gradients of all steps.
    pub(crate) fn zero_grad(&mut self) -> Result<(), TorchError> {
        self.previous.clear();
        let mut parameters = self.parameters.iter();
        parameters.try_for_each(|(_, parameter)| ffi::set_grad(parameter, None))
    }

    /// Sets whether the parameters that `chosen` selects get gradients.
    #[doc(alias = "requires_grad")]
    pub(crate) fn set_trainable(
        &mut self,
        chosen: &dyn Fn(&str) -> bool,
        trainable: bool,
    ) -> anyhow::Result<()> {
        for (name, parameter) in &self.parameters {
            if chosen(name) {
                let _ = parameter.f_set_requires_grad(trainable)?;
                if !trainable {
                    ffi::set_grad(parameter, None)?;
                }
            }
        }
        Ok(())
    }
}

/// The sums of two sets, made in the earlier one.
pub(super) fn added_sets(earlier: Gradients, later: Gradients) -> Result<Gradients, TorchError> {
    let (mut sums, mut more) = (Vec::new(), Vec::new());
    let both = earlier.into_iter().zip(later);
    let set = both.map(|(earlier, later)| match (earlier, later) {
        (Some(earlier), Some(later)) => {
            sums.push(earlier.shallow_clone());
            more.push(later);
            Some(earlier)
        }
        (earlier, later) => earlier.or(later),
    });
    let set = set.collect();
    ffi::add(&sums, &more)?;
    Ok(set)
}
