//! Detects files of models or weights passed as data.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use gpipe_partitioner::words::path_instead;

use crate::model::exported;
use gpipe_decide::find_run;

/// Extensions of `torch.save` files.
const SAVED: [&str; 4] = ["pt", "pth", "ckpt", "pkl"];

/// Rejects a `torch.save` file where weights are expected.
///
/// # Errors
/// The path names such a file; the error tells how to convert it.
pub(crate) fn check_weights(path: &Path) -> Result<(), String> {
    if !path.is_file() || !SAVED.contains(&ending(path).as_str()) {
        return Ok(());
    }
    let why = "this is a file of torch.save; in Python, write the weights in it with \
               `safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")`, and give \
               that file";
    Err(why.to_owned())
}

/// Data sets that torchvision, Hugging Face `datasets` and others download by these names.
const OF_LIBRARIES: [&str; 24] = [
    "mnist",
    "fashionmnist",
    "emnist",
    "cifar",
    "cifar10",
    "cifar100",
    "svhn",
    "imagenet",
    "imagenet1k",
    "tinyimagenet",
    "coco",
    "iris",
    "titanic",
    "imdb",
    "glue",
    "squad",
    "wikitext",
    "wikitext2",
    "wikitext103",
    "shakespeare",
    "tinyshakespeare",
    "tinystories",
    "openwebtext",
    "c4",
];

fn ending(path: &Path) -> String {
    let ending = path.extension().unwrap_or_default();
    ending.to_string_lossy().to_lowercase()
}

/// Rejects a path whose extension is that of a model or its weights.
///
/// # Errors
/// The path names such a file; the error says what it is and which flag takes it.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    if is_of_a_library(path) {
        return Err(
            "there is no such file or folder, and nothing is downloaded: save the data set first (as \
             arrays, a table, a folder of images for each class, or a text), and name that"
                .to_owned(),
        );
    }
    if find_run::is_run(path) {
        return Err(
            "this is the folder of a run, no data: a run is named with --resume or --run"
                .to_owned(),
        );
    }
    if find_run::has_runs(path) {
        return Err("there are folders of runs in this folder, which are no data".to_owned());
    }
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
        "jsonl" | "ndjson" => {
            "JSON Lines is not read: save it as a table, in Python \
             `pandas.read_json(\"data.jsonl\", lines=True).to_csv(\"data.csv\", index=False)`; a text as .txt"
        }
        "xlsx" | "xls" | "xlsm" | "ods" => {
            "this is a spreadsheet, and spreadsheets are not read: save it as CSV (UTF-8)"
        }
        "zip" | "tar" | "gz" | "tgz" | "bz2" | "xz" | "zst" | "7z" => {
            "this is compressed or an archive: unpack it, and name what is in it"
        }
        "csv" | "tsv" | "txt" if is_utf16(path) => {
            "this text is UTF-16, and UTF-8 is needed: save it as UTF-8 (in Excel as `CSV UTF-8`)"
        }
        _ => return Ok(()),
    };
    if path.is_file() {
        return Err(what.to_owned());
    }
    Ok(())
}

/// Whether this is the name of a data set that libraries download, rather than a path.
fn is_of_a_library(path: &Path) -> bool {
    let name = path.to_string_lossy().to_lowercase();
    let plain = name.replace(['-', '_', ' '], "");
    // A typing error of an existing file such as `iris.csv` gets the usual suggestion instead.
    OF_LIBRARIES.contains(&plain.as_str()) && !path.exists() && path_instead(path).is_empty()
}

/// Whether a file begins with a UTF-16 byte-order mark. Unreadable files are left to the reader, and so
/// are non-files: opening a pipe blocks until there is a writer.
fn is_utf16(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut mark = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut mark));
    read.is_ok() && matches!(mark, [0xff, 0xfe] | [0xfe, 0xff])
}

/// Like `check`, and rejects a single image: training and evaluation need several.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_several(path: &Path) -> Result<(), String> {
    if matches!(ending(path).as_str(), "jpg" | "jpeg" | "png") && path.is_file() {
        let why = "this is one image: name the folder in which each class has a folder of images";
        return Err(why.to_owned());
    }
    check(path)
}
