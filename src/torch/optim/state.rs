//! Updates of one stage's parameters, through libtorch's fused kernels.

mod away;
mod portable;

use tch::{Kind, Tensor};

use super::{AdamW, Groups, OptimizerKind, Sgd};
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, AdamNumbers, SgdNumbers};
use crate::torch::streams::Lane;
pub(crate) use portable::Parts;

/// What an optimizer remembers of each parameter of one stage.
#[derive(Debug, Default)]
pub(crate) struct OptimizerState {
    slots: Vec<Option<Slot>>,
    /// Of which parameters it is in the host's memory.
    away: Vec<bool>,
}

/// What is remembered of one parameter, of its shape and type.
#[derive(Debug)]
enum Slot {
    /// Of Adam and `AdamW`.
    AdamW {
        /// Running mean of gradients, and of their squares.
        mean: Tensor,
        square: Tensor,
        /// Number of updates, as the kernel wants it: a float on the device.
        steps: Tensor,
    },
    /// SGD's momentum buffer, after the first update.
    Momentum(Tensor),
}

/// A parameter that is about to be updated.
struct Chosen {
    /// Its place among the stage's parameters.
    place: usize,
    parameter: Tensor,
    grad: Tensor,
}

/// What goes to the kernels together: one update, and one type of numbers.
struct Batch {
    group: Option<usize>,
    kind: Kind,
    chosen: Vec<Chosen>,
}

impl OptimizerState {
    /// Applies the gradients that the parameters have accumulated, each as its
    /// group says, and clears all gradients. Parameters without a gradient and
    /// frozen ones are left alone. Where `found` is 1, a number on the parameters' device, all
    /// are, and so is what is remembered.
    pub(crate) fn step(
        &mut self,
        groups: &Groups,
        parameters: &[(String, Tensor)],
        lane: &Lane,
        found: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        self.slots.resize_with(parameters.len(), || None);
        self.away.resize(parameters.len(), false);
        let batches = batches(groups, parameters)?;
        if !groups.offload() && !self.any_away() {
            let update =
                |batch: &Batch| self.update(groups.kind(batch.group), &batch.chosen, found);
            return batches.iter().try_for_each(update);
        }
        self.update_by_windows(groups, &batches, lane, found)
    }

    fn update(
        &mut self,
        kind: &OptimizerKind,
        chosen: &[Chosen],
        found: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        match kind {
            OptimizerKind::Adam(adam) => self.adam(&adam.moments(), false, chosen, found),
            OptimizerKind::AdamW(adamw) => self.adam(adamw, true, chosen, found),
            OptimizerKind::Sgd(sgd) => self.sgd(sgd, chosen, found),
        }
    }

    /// Adam's update; `decoupled` is whether weights decay by themselves, as in `AdamW`.
    fn adam(
        &mut self,
        adam: &AdamW,
        decoupled: bool,
        chosen: &[Chosen],
        found: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        let (parameters, grads) = split(chosen);
        let (mut means, mut squares, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for Chosen {
            place, parameter, ..
        } in chosen
        {
            if !matches!(self.slots[*place], Some(Slot::AdamW { .. })) {
                self.slots[*place] = Some(Slot::adamw(parameter)?);
            }
            if let Some(Slot::AdamW {
                mean,
                square,
                steps,
            }) = &self.slots[*place]
            {
                means.push(mean.shallow_clone());
                squares.push(square.shallow_clone());
                counts.push(steps.shallow_clone());
            }
        }
        let numbers = AdamNumbers {
            lr: adam.lr,
            beta1: adam.beta1,
            beta2: adam.beta2,
            weight_decay: adam.weight_decay,
            eps: adam.eps,
            decoupled,
        };
        ffi::fused_adam(
            &parameters,
            &grads,
            &means,
            &squares,
            &counts,
            numbers,
            found,
        )
    }

    fn sgd(
        &mut self,
        sgd: &Sgd,
        chosen: &[Chosen],
        found: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        if sgd.momentum == 0.0 {
            let (parameters, grads) = split(chosen);
            return ffi::fused_sgd(&parameters, &grads, &[], numbers(sgd, false), found);
        }
        // A parameter's first update fills its buffer instead of blending into it.
        let known = |one: &&Chosen| matches!(self.slots[one.place], Some(Slot::Momentum(_)));
        let (known, new): (Vec<_>, Vec<_>) = chosen.iter().partition(known);
        // Nobody may know yet whether it is the first: a buffer of zeros comes to the same, as
        // nothing is dampened then (see `Groups::dampen`).
        for (list, first) in [(new, found.is_none()), (known, false)] {
            if list.is_empty() {
                continue;
            }
            let (parameters, grads) = split(list.iter().copied());
            let mut buffers = Vec::new();
            for one in list {
                let buffer = match &self.slots[one.place] {
                    Some(Slot::Momentum(buffer)) => buffer.shallow_clone(),
                    _ => zeros(&one.parameter)?,
                };
                self.slots[one.place] = Some(Slot::Momentum(buffer.shallow_clone()));
                buffers.push(buffer);
            }
            ffi::fused_sgd(&parameters, &grads, &buffers, numbers(sgd, first), found)?;
        }
        Ok(())
    }
}

impl Slot {
    fn adamw(parameter: &Tensor) -> Result<Self, TorchError> {
        Ok(Self::AdamW {
            mean: zeros(parameter)?,
            square: zeros(parameter)?,
            steps: Tensor::f_zeros([], (Kind::Float, parameter.device()))?,
        })
    }
}

/// Takes the gradients out of the parameters and sorts what is to be updated.
fn batches(groups: &Groups, parameters: &[(String, Tensor)]) -> Result<Vec<Batch>, TorchError> {
    // The user's predicates may panic: ask them before anything is taken.
    let own: Vec<_> = parameters.iter().map(|(name, _)| groups.of(name)).collect();
    let mut batches: Vec<Batch> = Vec::new();
    for (place, (name, parameter)) in parameters.iter().enumerate() {
        let Some(grad) = ffi::take_grad(parameter)? else {
            continue;
        };
        if !parameter.requires_grad() {
            continue;
        }
        if grad.is_sparse() {
            return Err(TorchError::new(format!(
                "the gradient of `{name}` is sparse, which these optimizers cannot use: build the layer for dense gradients"
            )));
        }
        let (group, kind) = (own[place], parameter.kind());
        let chosen = Chosen {
            place,
            parameter: parameter.shallow_clone(),
            grad,
        };
        let same = |batch: &&mut Batch| batch.group == group && batch.kind == kind;
        match batches.iter_mut().find(same) {
            Some(batch) => batch.chosen.push(chosen),
            None => batches.push(Batch {
                group,
                kind,
                chosen: vec![chosen],
            }),
        }
    }
    Ok(batches)
}

fn split<'a>(chosen: impl IntoIterator<Item = &'a Chosen>) -> (Vec<Tensor>, Vec<Tensor>) {
    chosen
        .into_iter()
        .map(|one| (one.parameter.shallow_clone(), one.grad.shallow_clone()))
        .unzip()
}

fn zeros(parameter: &Tensor) -> Result<Tensor, TorchError> {
    Ok(tch::no_grad(|| parameter.f_zeros_like())?)
}

fn numbers(sgd: &Sgd, first: bool) -> SgdNumbers {
    SgdNumbers {
        lr: sgd.lr,
        momentum: sgd.momentum,
        dampening: sgd.dampening,
        weight_decay: sgd.weight_decay,
        nesterov: sgd.nesterov,
        first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tch::Device;

    const BASE: AdamW = AdamW {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    const MOMENTUM: Sgd = Sgd {
        lr: 0.2,
        momentum: 0.9,
        dampening: 0.1,
        weight_decay: 0.01,
        nesterov: false,
    };

    type Named = Vec<(String, Tensor)>;

    fn parameters(names: &[&str]) -> Named {
        let parameter = |(number, name): (usize, &&str)| {
            let values = Tensor::arange(5 + number as i64, (Kind::Float, Device::Cpu));
            ((*name).to_owned(), values.sin().set_requires_grad(true))
        };
        names.iter().enumerate().map(parameter).collect()
    }

    /// The gradient that a parameter of this name and size gets in this step.
    fn give_gradients(parameters: &Named, step: usize) {
        for (name, parameter) in parameters {
            let phase = (name.len() * 10 + step) as f64;
            let grad = tch::no_grad(|| (parameter.detach() * phase).cos());
            ffi::set_grad(parameter, Some(&grad)).unwrap();
        }
    }

    fn train(groups: &Groups, parameters: &Named) -> OptimizerState {
        let mut state = OptimizerState::default();
        for step in 0..5 {
            give_gradients(parameters, step);
            state.step(groups, parameters, &Lane::host(), None).unwrap();
        }
        state
    }

    fn subset(parameters: &Named, names: &[&str]) -> Named {
        let own = |(name, _): &&(String, Tensor)| names.contains(&name.as_str());
        let handle = |(name, tensor): &(String, Tensor)| (name.clone(), tensor.shallow_clone());
        parameters.iter().filter(own).map(handle).collect()
    }

    fn assert_same(left: &Named, right: &Named) {
        for ((name, left), (_, right)) in left.iter().zip(right) {
            assert!(left.equal(right), "{name}");
        }
    }

    #[test]
    fn groups_update_as_an_optimizer_each_would() {
        let names = ["a", "b.bias", "cc", "d.bias", "e.slow", "ff"];
        let together = parameters(&names);
        let by_hand = parameters(&names);
        let bare = AdamW {
            weight_decay: 0.0,
            ..BASE
        };
        let mut groups = Groups::new(BASE.into());
        groups.push(Arc::new(|name| name.ends_with("bias")), bare.into());
        groups.push(Arc::new(|name| name.contains("slow")), MOMENTUM.into());
        train(&groups, &together);
        train(
            &Groups::new(BASE.into()),
            &subset(&by_hand, &["a", "cc", "ff"]),
        );
        train(
            &Groups::new(bare.into()),
            &subset(&by_hand, &["b.bias", "d.bias"]),
        );
        train(
            &Groups::new(MOMENTUM.into()),
            &subset(&by_hand, &["e.slow"]),
        );
        assert_same(&together, &by_hand);
        assert!(together.iter().all(|(_, p)| !p.grad().defined()));
    }

    #[test]
    fn parameters_without_gradient_and_frozen_ones_are_left_alone() {
        for kind in [OptimizerKind::from(BASE), MOMENTUM.into()] {
            let groups = Groups::new(kind);
            let own = parameters(&["used", "unused", "frozen"]);
            let before = parameters(&["used", "unused", "frozen"]);
            let mut state = train(&groups, &subset(&own, &["used"]));
            give_gradients(&own, 5);
            ffi::set_grad(&own[1].1, None).unwrap();
            let _ = own[2].1.set_requires_grad(false);
            state.step(&groups, &own, &Lane::host(), None).unwrap();
            assert!(!own[0].1.equal(&before[0].1));
            let left_alone = ["unused", "frozen"];
            assert_same(&subset(&own, &left_alone), &subset(&before, &left_alone));
            assert!(
                !own[2].1.grad().defined(),
                "a gradient from before it was frozen"
            );
        }
    }

    #[test]
    fn another_kind_of_update_starts_anew_and_other_numbers_go_on() {
        let own = parameters(&["a"]);
        let mut state = train(&Groups::new(BASE.into()), &own);
        give_gradients(&own, 5);
        let before = own[0].1.copy();
        let grad = own[0].1.grad().copy();
        let plain = Sgd {
            weight_decay: 0.0,
            ..MOMENTUM
        };
        state
            .step(&Groups::new(plain.into()), &own, &Lane::host(), None)
            .unwrap();
        let expected = tch::no_grad(|| before - grad * 0.2);
        assert!(own[0].1.allclose(&expected, 1e-6, 1e-7, false));
        let slower = AdamW { lr: 0.01, ..BASE };
        give_gradients(&own, 6);
        state
            .step(&Groups::new(slower.into()), &own, &Lane::host(), None)
            .unwrap();
        give_gradients(&own, 7);
        state
            .step(&Groups::new(BASE.into()), &own, &Lane::host(), None)
            .unwrap();
        let Some(Slot::AdamW { steps, .. }) = &state.slots[0] else {
            panic!("not AdamW's state");
        };
        assert_eq!(steps.double_value(&[]), 2.0);
    }

    #[test]
    fn numbers_of_several_types_are_updated_side_by_side() {
        let mut own = parameters(&["a", "b", "c"]);
        own[1].1 = own[1]
            .1
            .detach()
            .to_kind(Kind::Double)
            .set_requires_grad(true);
        let alone = |place: usize| {
            let (name, tensor) = &own[place];
            vec![(name.clone(), tensor.detach().copy().set_requires_grad(true))]
        };
        let by_hand: Vec<Named> = (0..3).map(alone).collect();
        train(&Groups::new(BASE.into()), &own);
        for (place, by_hand) in by_hand.iter().enumerate() {
            train(&Groups::new(BASE.into()), by_hand);
            assert!(own[place].1.equal(&by_hand[0].1), "{place}");
        }
    }

    #[test]
    fn a_sparse_gradient_is_refused_with_its_parameters_name() {
        let own = parameters(&["embed.weight"]);
        let grad = own[0].1.detach().to_sparse_sparse_dim(1);
        ffi::set_grad(&own[0].1, Some(&grad)).unwrap();
        let error =
            OptimizerState::default().step(&Groups::new(BASE.into()), &own, &Lane::host(), None);
        let message = error.unwrap_err().to_string();
        assert!(message.contains("`embed.weight` is sparse"), "{message}");
    }
}
