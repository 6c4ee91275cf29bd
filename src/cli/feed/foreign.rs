//! Files that hold models or weights, where data is asked for.

use std::path::Path;

use crate::cli::model::exported;

/// What `torch.save` files are called.
const SAVED: [&str; 4] = ["pt", "pth", "ckpt", "pkl"];

/// That a path does not name a model or its weights, as its ending tells.
///
/// # Errors
/// It does: what it is, and where it belongs.
pub(in crate::cli) fn check(path: &Path) -> Result<(), String> {
    let ending = path.extension().unwrap_or_default();
    let ending = ending.to_string_lossy().to_lowercase();
    let what = match ending.as_str() {
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
        _ => return Ok(()),
    };
    if path.is_file() {
        return Err(what.to_owned());
    }
    Ok(())
}
