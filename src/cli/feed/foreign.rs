//! Files that hold models or weights, where data is asked for.

use std::path::Path;

use crate::cli::model::exported;

/// What `torch.save` files are called.
const SAVED: [&str; 4] = ["pt", "pth", "ckpt", "pkl"];

/// That a path does not name a file of `torch.save`, where weights are asked for.
///
/// # Errors
/// It does: how its weights become a file that is read.
pub(in crate::cli) fn check_weights(path: &Path) -> Result<(), String> {
    if !path.is_file() || !SAVED.contains(&ending(path).as_str()) {
        return Ok(());
    }
    let why = "this is a file of torch.save; in Python, write the weights in it with \
               `safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")`, and give \
               that file";
    Err(why.to_owned())
}

fn ending(path: &Path) -> String {
    let ending = path.extension().unwrap_or_default();
    ending.to_string_lossy().to_lowercase()
}

/// That a path does not name a model or its weights, as its ending tells.
///
/// # Errors
/// It does: what it is, and where it belongs.
pub(in crate::cli) fn check(path: &Path) -> Result<(), String> {
    let what = match ending(path).as_str() {
        exported::END => {
            "this is a program that PyTorch exported, no data: give it as --model, and the data \
             (arrays, a table, images, a text) as --data"
        }
        own if SAVED.contains(&own) => {
            "this is a file of torch.save (weights or pickled objects), no data; data is arrays, \
             `numpy.savez(\"data.npz\", x=x.numpy(), y=y.numpy())`, a table, images or a text; weights \
             belong to --weights, as safetensors \
             (`safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")`)"
        }
        "onnx" => {
            "this is a model of ONNX, no data, and models of ONNX are not read: export the model with \
             torch.export"
        }
        "json" => {
            "JSON is not read: save the samples as arrays, \
             `numpy.savez(\"data.npz\", x=x, y=y)`, or as a table (CSV with a heading); a text as .txt"
        }
        _ => return Ok(()),
    };
    if path.is_file() {
        return Err(what.to_owned());
    }
    Ok(())
}

/// The same, and that it is no single image: those who train and judge need several.
///
/// # Errors
/// As [`check`].
pub(in crate::cli) fn check_several(path: &Path) -> Result<(), String> {
    if matches!(ending(path).as_str(), "jpg" | "jpeg" | "png") && path.is_file() {
        let why = "this is one image: name the folder in which each class has a folder of images";
        return Err(why.to_owned());
    }
    check(path)
}
