//! A program that PyTorch exported as a model of the zoo.

use super::{Entry, Instance, ModelSpec, Settings, Zoo};
use crate::exported::{ExportedError, ExportedModel, ExportedReason, unsupported};
use crate::loss_kind::NamedLoss;
use gpipe_torch::{LossFn, Values, on_values};

/// The size of a model whose sequences have any number of tokens.
const CONTEXT: &str = "context";

impl ExportedModel {
    /// The program as a model of the [zoo](crate::zoo), whose name is the file's: with
    /// made-up inputs and targets of its shapes, and a loss function. Where sizes besides the
    /// samples' are dynamic, they are the example's, or those of [`ExportedModel::resized`]. The tokens
    /// of a sequence, if they are dynamic, are its size `context`.
    ///
    /// Without a loss there are no targets, and training fails.
    ///
    /// # Errors
    /// Inputs whose dimension 0 is not the samples, or a loss that does not fit the outputs.
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
    // What is wrong with the program is told as such.
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

/// The tokens of a sequence, where they are dynamic.
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
