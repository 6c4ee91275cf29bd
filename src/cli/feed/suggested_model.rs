//! Suggests a model of the zoo for data that the chosen one does not take.

use std::path::Path;

use gpipe_partitioner::words::quoted;

use crate::model::Chosen;
use gpipe_data::{SampleOptions, Samples};

/// Image side for a quick first try.
const SIDE: i64 = 64;
/// Inputs up to which a small model suffices.
const FEW: i64 = 256;

/// Returns a suffix for an error: the command with a model that takes this data. Empty if none is
/// known, or if the data itself is invalid.
pub(super) fn instead(chosen: &Chosen, path: &Path) -> String {
    let name = chosen.spec.name();
    if chosen.spec.exported().is_some() {
        return String::new();
    }
    match model(path) {
        Some(model) if !model.split(' ').any(|word| word == name) => {
            format!("; for this data: {}", command(&model, path))
        }
        _ => String::new(),
    }
}

/// Suggests the command that learns a column of a table from the others.
pub(super) fn of_table(path: &Path, target: Option<&str>) -> String {
    let model = model(path);
    let model = model.as_deref().unwrap_or("mlp --hidden 64 --depth 3");
    let numbers = if model.contains("--loss") {
        ""
    } else {
        ", with --loss mse where it has numbers rather than classes"
    };
    format!(
        "to learn a column from the others, `gpipe-rs train --model {model} --data {} --target \
         {}`{numbers}",
        quoted(path),
        quoted(target.unwrap_or("COLUMN"))
    )
}

fn command(model: &str, path: &Path) -> String {
    format!("`gpipe-rs train --model {model} --data {}`", quoted(path))
}

/// Returns a model and its flags, if the path holds samples.
fn model(path: &Path) -> Option<String> {
    let options = SampleOptions::default().held_out(0.0).image(3, SIDE, SIDE);
    if let Ok(samples) = Samples::open(path, &options) {
        // A single class teaches nothing.
        if samples.teaches_nothing().is_some() {
            return None;
        }
        return Some(match samples.input() {
            [3, SIDE, SIDE] => format!("resnet50 --image {SIDE}"),
            shape => mlp(shape).to_owned(),
        });
    }
    let numbers = Samples::open(path, &options.numbers()).ok()?;
    // A model of numbers does not take images.
    if path.is_dir() {
        return None;
    }
    Some(format!("{} --loss mse", mlp(numbers.input())))
}

/// An MLP for inputs of a shape.
fn mlp(input: &[i64]) -> &'static str {
    if input.iter().product::<i64>() <= FEW {
        "mlp --hidden 64 --depth 3"
    } else {
        "mlp"
    }
}
