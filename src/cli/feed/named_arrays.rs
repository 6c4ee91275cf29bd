//! Arrays for the named inputs of an exported program.

use std::path::Path;

use super::samples::{DataOptions, check, takes};
use crate::model::Chosen;
use gpipe_data::{DataError, Field, Normalise, SampleOptions, Several};
use gpipe_models::USUAL_IGNORED;
use gpipe_models::zoo::{Fill, ModelSpec, Synthetic};

/// Default names of the input and target arrays.
const INPUT: &str = "x";
const TARGET: &str = "y";

/// Opens the arrays named after the program's inputs, and resizes the program to them. `None` if there
/// are none, or if the program takes pairs.
///
/// # Errors
/// The arrays are invalid.
pub(super) fn by_name(
    chosen: &Chosen,
    path: &Path,
    options: &DataOptions,
) -> Result<Option<(Chosen, Several)>, String> {
    let spec = &chosen.spec;
    let names = names(spec);
    let pair = names == [INPUT, TARGET] || (spec.inputs().len(), spec.targets().len()) == (1, 1);
    if names.is_empty() || pair {
        return Ok(None);
    }
    let wanted = SampleOptions::default()
        .held_out(options.held_out)
        .seed(options.seed)
        .shuffle(options.shuffle);
    let told = |error: DataError| error.to_string();
    let shapes = Several::shapes(path, &fields(chosen, &names)).map_err(told)?;
    let shapes: Vec<&[i64]> = shapes.iter().flatten().map(Vec::as_slice).collect();
    let chosen = chosen.resized(&shapes[..shapes.len().min(names.len())])?;
    let found = Several::open(path, &fields(&chosen, &names), names.len(), &wanted);
    let found = found.map_err(told)?;
    if found.is_some() && !matches!(options.normalise, Normalise::Auto | Normalise::None) {
        return Err(format!(
            "--normalise {} is for samples of one input, but {}: scale the arrays before, or in the \
             model",
            options.normalise,
            takes(spec)
        ));
    }
    Ok(found.map(|found| (chosen, found)))
}

/// Names of the program's inputs.
pub(super) fn names(spec: &ModelSpec) -> Vec<String> {
    let exported = spec.exported().filter(|_| spec.named_loss().is_some());
    let names = exported.iter().flat_map(|model| model.input_names());
    names.map(str::to_owned).collect()
}

fn fields(chosen: &Chosen, names: &[String]) -> Vec<Field> {
    let spec = &chosen.spec;
    let field = |one: &Synthetic, names: Vec<String>, what, ignored| Field {
        names,
        shape: one.shape().to_vec(),
        check: check(one, what, ignored),
        scales_bytes: !matches!(one.fill(), Fill::Classes(_) | Fill::Integers(_)),
    };
    let named = |name: &String| match names.len() {
        // A single input may also have the default name.
        1 => vec![name.clone(), INPUT.to_owned()],
        _ => vec![name.clone()],
    };
    let inputs = spec.inputs().iter().zip(names);
    let inputs = inputs.map(|(one, name)| field(one, named(name), "input", None));
    let ignored = chosen.loss().and_then(|own| own.ignored());
    let ignored = Some(ignored.unwrap_or(USUAL_IGNORED));
    let targets = spec.targets().iter();
    let targets = targets.map(|one| field(one, vec![TARGET.to_owned()], "target", ignored));
    inputs.chain(targets).collect()
}

/// Returns the model with a loss that ignores PyTorch's default ignored target.
pub(super) fn ignoring(chosen: &Chosen) -> Chosen {
    let mut other = chosen.clone();
    if chosen.loss().is_none_or(|own| own.ignored().is_none()) {
        other.spec = chosen.spec.ignoring(USUAL_IGNORED);
    }
    other
}

/// Explains why the model does not take the data.
pub(super) fn refused(spec: &ModelSpec, path: &Path) -> String {
    let names = names(spec);
    if names.is_empty() {
        return format!(
            "{}, but samples have one input and one target each",
            takes(spec)
        );
    }
    let listed = |names: &[String]| {
        let names = names.iter().map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    let mut wanted = names.clone();
    if !spec.targets().is_empty() {
        wanted.push(TARGET.to_owned());
    }
    let there = match Several::names(path) {
        Ok(Some(there)) => format!("; there are {}", listed(&there)),
        _ => String::new(),
    };
    format!(
        "{}: bring an array for each of its inputs (.npz, .safetensors, a folder of .npy), called \
         {}{there}",
        takes(spec),
        listed(&wanted)
    )
}
