//! What the data of a program looks like: its inputs, and the targets of a loss.

use std::collections::BTreeSet;

use tch::Kind;

use super::ExportedModel;
use super::error::{Result, unsupported};
use super::program::{Argument, Node, Origin, Program, Size, ValueId, ValueInfo};
use crate::loss_kind::{LossKind, class_dimensions, is_float};
use crate::synthetic::Synthetic;

/// Number of truth values.
const TRUTHS: i64 = 2;
/// Made-up integers without a known range are below this: they may be a mask.
const MADE_UP: i64 = 2;

/// Operators that take class indices.
const CLASSES: &[&str] = &["cross_entropy_loss", "nll_loss", "nll_loss_nd"];

/// Operators whose first output has the elements of their first input.
const SAME_ELEMENTS: &[&str] = &[
    "_to_copy",
    "alias",
    "clone",
    "contiguous",
    "detach",
    "expand",
    "flatten",
    "permute",
    "reshape",
    "select",
    "slice",
    "squeeze",
    "to",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
];

/// Whether this is a tensor of one float.
pub(super) fn is_single(value: &ValueInfo) -> bool {
    value.sizes.as_ref().is_some_and(Vec::is_empty) && value.kind.is_some_and(is_float)
}

/// Returns the number of rows of the smallest embedding table that is indexed with a value's elements,
/// or of classes that they are.
fn looked_up(program: &Program, value: ValueId) -> Option<i64> {
    let (mut same, mut fewest) = (BTreeSet::from([value]), None);
    let is = |same: &BTreeSet<ValueId>, node: &Node, name: &str| {
        let own = node.argument(name);
        matches!(own, Some(Argument::Value(own)) if same.contains(own))
    };
    // Nodes follow the nodes that they use.
    for node in &program.nodes {
        if node.operator() == "embedding" && is(&same, node, "indices") {
            let Some(Argument::Value(table)) = node.argument("weight") else {
                continue;
            };
            let rows = program.values[table.0].example.as_ref();
            let rows = rows.and_then(|own| own.first()).copied();
            fewest = [fewest, rows].into_iter().flatten().min();
        }
        if CLASSES.contains(&node.operator()) && is(&same, node, "target") {
            let logits = node.arguments.first().map(|(_, own)| own.values());
            let logits = logits.and_then(|own| own.first().copied());
            let shape = logits.and_then(|own| program.values[own.0].example.as_ref());
            let classes = shape.and_then(|own| own.get(1)).copied();
            fewest = [fewest, classes].into_iter().flatten().min();
        }
        let first = node.arguments.first().map(|(name, _)| name.as_str());
        let passes = SAME_ELEMENTS.contains(&node.operator());
        if passes && first.is_some_and(|first| is(&same, node, first)) {
            same.extend(node.outputs.first());
        }
    }
    fewest
}

/// Whether the classes may be in two dimensions of the first output.
pub(super) fn has_two_class_dimensions(program: &Program) -> bool {
    let output = program.outputs.first().map(|id| &program.values[id.0]);
    let shape = output.and_then(|own| own.example.as_ref());
    shape.is_some_and(|shape| {
        let [usual, other] = class_dimensions(shape.len());
        usual != other
    })
}

/// Returns the class dimension of an output: the usual one, or the other if only that leaves a target
/// for each token of the input.
fn class_dimension(output: &[i64], inputs: &[Synthetic], turned: bool) -> usize {
    let [usual, other] = class_dimensions(output.len());
    let tokens = match inputs {
        [input] if input.is_tokens() => Some(input.shape()),
        _ => None,
    };
    let leaves = |at: usize| {
        let mut rest = output[1..].to_vec();
        (1..=rest.len()).contains(&at) && {
            rest.remove(at - 1);
            Some(rest.as_slice()) == tokens
        }
    };
    let [first, second] = if leaves(other) && !leaves(usual) {
        [other, usual]
    } else {
        [usual, other]
    };
    if turned { second } else { first }
}

impl ExportedModel {
    /// Describes each input of one sample.
    pub(crate) fn inputs(&self) -> Result<Vec<Synthetic>> {
        let program = &self.own.program;
        let mut batch: Option<(&str, &Size)> = None;
        let mut inputs = Vec::new();
        for id in &program.inputs {
            let info = &program.values[id.0];
            let place = || format!("the input `{}`", info.name);
            let none = || unsupported(place(), "the file does not tell its shape");
            let sizes = info.sizes.as_ref().ok_or_else(none)?;
            let Some(own) = sizes.first() else {
                let what = "is a single number: dimension 0 of each input must be the samples";
                return Err(unsupported(place(), what));
            };
            let (name, first) = *batch.get_or_insert((&info.name, own));
            if first != own {
                return Err(unsupported(
                    place(),
                    format!(
                        "its dimension 0 is not that of `{name}`, the samples, and micro-batches have \
                         only some of them: make it a buffer of the model, or give each sample its own"
                    ),
                ));
            }
            let shape = self.shape(info).ok_or_else(none)?;
            let shape = shape.iter().skip(1).copied().collect::<Vec<_>>();
            let kind = info.kind.unwrap_or(Kind::Float);
            let made = if is_float(kind) || matches!(kind, Kind::ComplexFloat | Kind::ComplexDouble)
            {
                Synthetic::normal(shape)
            } else if kind == Kind::Bool {
                Synthetic::classes(shape, TRUTHS)
            } else {
                match looked_up(program, *id) {
                    Some(rows) => Synthetic::classes(shape, rows),
                    None => Synthetic::integers(shape, MADE_UP),
                }
            };
            inputs.push(made.of_kind(kind));
        }
        Ok(inputs)
    }

    /// Describes each target of one sample.
    pub(crate) fn targets(&self, inputs: &[Synthetic], loss: LossKind) -> Result<Vec<Synthetic>> {
        let place = || format!("the loss `{loss}`");
        let program = &self.own.program;
        let outputs = program.outputs.iter().map(|id| &program.values[id.0]);
        if loss == LossKind::Output {
            if outputs.clone().any(is_single) {
                return Ok(Vec::new());
            }
            let what = "none of the model's outputs is a single number: name another loss, or have \
                        `forward` return its own";
            return Err(unsupported(place(), what));
        }
        let Some(first) = outputs.clone().next() else {
            return Err(unsupported(place(), "the model has no output"));
        };
        if is_single(first) {
            let what = "the model's first output is a single number: use the loss `output`";
            return Err(unsupported(place(), what));
        }
        let shape = match (self.shape(first), first.origin) {
            (Some(shape), Origin::Node(_)) if !shape.is_empty() => shape,
            _ => {
                let what = "the model's first output is not computed from its inputs, or its shape is \
                            not known";
                return Err(unsupported(place(), what));
            }
        };
        let mut sample = shape[1..].to_vec();
        Ok(vec![match loss {
            LossKind::CrossEntropy => {
                let at = class_dimension(&shape, inputs, self.turned);
                if at == 0 {
                    let what = "the model's first output has no dimension of classes";
                    return Err(unsupported(place(), what));
                }
                let classes = sample.remove(at - 1);
                Synthetic::classes(sample, classes.max(1))
            }
            LossKind::Bce => Synthetic::uniform(sample),
            LossKind::Mse | LossKind::Output => Synthetic::normal(sample),
        }])
    }
}
