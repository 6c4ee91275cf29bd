//! Selection of the parameters to update, and their grouping for the kernels.

use tch::{Kind, Tensor};

use super::Groups;
use crate::error::TorchError;

/// A parameter that is about to be updated.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Index among the stage's parameters.
    pub(super) place: usize,
    pub(super) parameter: Tensor,
    pub(super) grad: Tensor,
}

/// Parameters for one kernel call: one update, and one number type.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) group: Option<usize>,
    kind: Kind,
    pub(super) chosen: Vec<Chosen>,
}

/// Groups the parameters that have a gradient and are not frozen. No gradient is taken.
pub(super) fn batches(
    groups: &Groups,
    parameters: &[(String, Tensor)],
) -> Result<Vec<Batch>, TorchError> {
    let mut batches: Vec<Batch> = Vec::new();
    for (place, (name, parameter)) in parameters.iter().enumerate() {
        let (group, grad) = (groups.of(name), parameter.grad());
        if !grad.defined() || !parameter.requires_grad() {
            continue;
        }
        let kind = parameter.kind();
        check(name, kind, &grad)?;
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

/// Refuses in advance gradients that the kernels would refuse after other parameters are updated.
fn check(name: &str, kind: Kind, grad: &Tensor) -> Result<(), TorchError> {
    if grad.is_sparse() {
        return Err(TorchError::new(format!(
            "the gradient of `{name}` is sparse, which these optimizers cannot use: build the layer for dense gradients"
        )));
    }
    if !matches!(
        kind,
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16
    ) {
        return Err(TorchError::new(format!(
            "`{name}` is of type {kind:?}, which these optimizers cannot update: freeze it"
        )));
    }
    Ok(())
}

pub(super) fn split<'a>(
    chosen: impl IntoIterator<Item = &'a Chosen>,
) -> (Vec<Tensor>, Vec<Tensor>) {
    chosen
        .into_iter()
        .map(|one| (one.parameter.shallow_clone(), one.grad.shallow_clone()))
        .unzip()
}
