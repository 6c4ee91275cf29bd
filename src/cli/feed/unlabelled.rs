//! Inputs without targets, for a trained model.

use std::path::Path;

use super::DataOptions;
use super::samples::{check, fixed_shape, takes, wanted};
use crate::model::Chosen;
use gpipe_data::{Check, DataError, Samples};
use gpipe_models::zoo::Synthetic;

/// Opens the inputs at a path, shaped for the model and read with the run's saved options.
///
/// # Errors
/// The data is invalid, or the model does not take it.
pub(crate) fn unlabelled(
    chosen: &Chosen,
    path: &Path,
    options: &DataOptions,
) -> Result<Samples, String> {
    let spec = &chosen.spec;
    let ([input], [target]) = (spec.inputs(), spec.targets()) else {
        return Err(format!(
            "{}: inputs alone are for models of one input and one target; `export` writes the weights \
             for PyTorch, where the module itself predicts",
            takes(spec)
        ));
    };
    let wanted = wanted(chosen, input, target, options).map_err(|error| error.to_string())?;
    let samples = Samples::unlabelled(path, &wanted).map_err(|error| match error {
        DataError::Settings(what) => format!("{}: {what}; {}", path.display(), takes(spec)),
        error => error.to_string(),
    })?;
    let resized = chosen.resized(&[samples.input()])?.spec;
    let shape = resized
        .inputs()
        .first()
        .map_or(input.shape(), Synthetic::shape);
    let shaped = samples.shaped(shape, samples.target());
    let shaped = shaped.map_err(|error| {
        let fixed = fixed_shape(spec, samples.input());
        format!("{error}: {}{fixed}", takes(spec))
    })?;
    Ok(shaped.checked(check(input, "input", None), Check::any("target")))
}
