//! Expected sums, from the gradients of each micro-batch, with plain tch.

use std::collections::BTreeSet;

use gpipe::Pipeline;
use gpipe::tch::{self, Tensor};

use crate::support::models::Model;
use crate::support::reference::{Named, Reference, sizes};
use crate::support::snapshot;

/// Leaves of the trees.
pub(super) const LEAVES: [usize; 4] = [1, 2, 4, 8];

fn plus(left: Option<Tensor>, right: Option<Tensor>) -> Option<Tensor> {
    match (left, right) {
        (Some(left), Some(right)) => Some(tch::no_grad(|| left + right)),
        (left, right) => left.or(right),
    }
}

/// Adds the leaves by recursive halving.
fn node(leaves: &[Option<Tensor>]) -> Option<Tensor> {
    if let [leaf] = leaves {
        return leaf.as_ref().map(Tensor::copy);
    }
    let (left, right) = leaves.split_at(leaves.len() / 2);
    plus(node(left), node(right))
}

/// The tree sum of one parameter's gradients; absent if all of them are.
fn sum(gradients: &[Option<Tensor>], leaves: usize) -> Option<Tensor> {
    let count = gradients.len();
    let leaf = |leaf: usize| {
        let own = &gradients[leaf * count / leaves..(leaf + 1) * count / leaves];
        let own = own.iter().map(|own| own.as_ref().map(Tensor::copy));
        own.fold(None, plus)
    };
    node(&(0..leaves).map(leaf).collect::<Vec<_>>())
}

/// The sums of all parameters' gradients.
pub(super) fn sums(of_each: &[Named], leaves: usize) -> Named {
    let names: BTreeSet<&String> = of_each.iter().flatten().map(|(name, _)| name).collect();
    let all = names.into_iter().filter_map(|name| {
        let own = |named: &Named| {
            let found = named.iter().find(|(own, _)| own == name);
            found.map(|(_, gradient)| gradient.copy())
        };
        let gradients: Vec<_> = of_each.iter().map(own).collect();
        Some((name.clone(), sum(&gradients, leaves)?))
    });
    all.collect()
}

/// The gradients of a model's first step, with tied places added in the order of the layers.
pub(super) struct Oracle {
    of_each: Vec<Named>,
    ties: Vec<(String, String)>,
}

impl Oracle {
    /// For a pipeline of the model that has not made a step yet.
    pub(super) fn new(
        model: &Model,
        pipe: &mut Pipeline,
        (x, y): (&Tensor, &Tensor),
        micro_batches: usize,
    ) -> Self {
        let mut values = snapshot(pipe);
        let owned = |name: &str| values.iter().find(|(own, _)| own == name);
        let copies = model.ties().iter().map(|(owner, copy)| {
            let (_, value) = owned(owner).unwrap();
            ((*copy).to_owned(), value.copy())
        });
        let copies: Named = copies.collect();
        values.extend(copies);
        let reference = Reference::new(&model.clone().untied(), &values);
        let name = |(owner, copy): &(&str, &str)| ((*owner).to_owned(), (*copy).to_owned());
        Self {
            of_each: reference.of_each(x, y, &sizes(x.size()[0], micro_batches)),
            ties: model.ties().iter().map(name).collect(),
        }
    }

    pub(super) fn sums(&self, leaves: usize) -> Named {
        let mut all = sums(&self.of_each, leaves);
        for (owner, copy) in &self.ties {
            let place = |name: &String| all.iter().position(|(own, _)| own == name);
            let (_, later) = all.remove(place(copy).unwrap());
            let place = all.iter().position(|(own, _)| own == owner).unwrap();
            let earlier = all[place].1.shallow_clone();
            all[place].1 = earlier + later;
        }
        all
    }
}

/// The numbers' bits, which distinguish -0.0 and 0.0.
pub(super) fn bits(named: &[(String, Tensor)]) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: &Tensor| -> Vec<u32> {
        let numbers = Vec::<f32>::try_from(tensor.detach().reshape([-1])).unwrap();
        numbers.into_iter().map(f32::to_bits).collect()
    };
    let list = named.iter();
    list.map(|(name, tensor)| (name.clone(), bits(tensor)))
        .collect()
}

/// Checks for equal bits; the panic names the tensors that differ.
#[track_caller]
pub(super) fn assert_bits(own: &[(String, Tensor)], expected: &[(String, Tensor)], case: &str) {
    let (own, expected) = (bits(own), bits(expected));
    let names = |all: &[(String, _)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&own), names(&expected), "{case}");
    let pairs = own.iter().zip(&expected);
    let other: Vec<_> = pairs.filter(|(own, expected)| own != expected).collect();
    let other: Vec<&String> = other.into_iter().map(|((name, _), _)| name).collect();
    assert!(other.is_empty(), "{case}: other bits of {other:?}");
}
