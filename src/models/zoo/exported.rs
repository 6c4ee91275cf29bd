//! A program that PyTorch exported as a model of the zoo.

use super::{Entry, Instance, ModelSpec, Settings, Zoo};
use crate::exported::{ExportedError, ExportedModel, ExportedReason, unsupported};
use crate::loss_kind::NamedLoss;
use gpipe_torch::{LossFn, Values, on_values};

/// Name of the sequence length of a model with dynamic sequences.
const CONTEXT: &str = "context";

impl ExportedModel {
    /// Returns the program as a model of the [zoo](crate::zoo), named after the file: with made-up
    /// inputs and targets of its shapes, and a loss function. Dynamic sizes other than the samples' are
    /// the example's, or those of [`ExportedModel::resized`]. If the tokens of a sequence are dynamic,
    /// their number is its size `context`.
    ///
    /// Without a loss there are no targets, and training fails.
    ///
    /// # Errors
    /// Dimension 0 of an input is not the samples, or the loss does not fit the outputs.
    pub fn spec(&self, loss: Option<NamedLoss>) -> Result<ModelSpec, ExportedError> {
        self.with_path(spec(self, loss))
    }
}

fn spec(model: &ExportedModel, loss: Option<NamedLoss>) -> Result<ModelSpec, ExportedReason> {
    let context = context(model)?;
    let own = model.clone();
    let make = move |sizes: &Settings| {
        let resized = match &context {
            Some(_) => own.resized(&[&[sizes.count(CONTEXT)]])?,
            None => own.clone(),
        };
        Ok(instance(&resized, loss)?)
    };
    // Reports errors of the program directly.
    instance(model, loss)?;
    let name = model.path().display().to_string();
    let entry = Entry::new(&name, make)
        .about("a program that PyTorch exported")
        .source("torch.export.save");
    let entry = match context {
        Some(tokens) => entry.count(CONTEXT, tokens, "tokens of a sequence"),
        None => entry,
    };
    let mut zoo = Zoo::new();
    let spec = zoo.add(entry).and_then(|()| zoo.spec(&name, [""; 0]));
    spec.map_err(|error| unsupported("the file's name", error.to_string()))
}

/// Returns the sequence length, if it is dynamic.
fn context(model: &ExportedModel) -> Result<Option<i64>, ExportedReason> {
    Ok(match (&model.inputs()?[..], &model.dynamic()[..]) {
        ([input], [_]) if input.is_tokens() => input.shape().first().copied(),
        _ => None,
    })
}

fn instance(model: &ExportedModel, loss: Option<NamedLoss>) -> Result<Instance, ExportedReason> {
    let inputs = model.inputs()?;
    let layers = model.build();
    let instance = match loss {
        Some(loss) => {
            let loss = (model.own_loss()).map_or(loss, |own| loss.of_output(own));
            let targets = model.targets(&inputs, loss.kind())?;
            Instance::judged_by(layers, inputs, targets, loss)
        }
        None => Instance::of_several(layers, inputs, Vec::new(), no_loss()),
    };
    Ok(instance.exported(model.clone()))
}

fn no_loss() -> impl LossFn {
    on_values(|_: &Values, _: &Values| -> anyhow::Result<tch::Tensor> {
        anyhow::bail!("no loss was named for the exported program")
    })
}
