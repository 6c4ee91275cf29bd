//! `gpipe-rs export`: weights for other programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::trained::{Place, Spoken, Trained};
use super::{Failure, output};
use gpipe_models::hugging_face::{self, HuggingFaceError};
use gpipe_models::save_tensors;
use gpipe_models::zoo::Zoo;

/// File name in a folder, for weights without a configuration file.
const STATE_DICT: &str = "model.safetensors";
/// Configuration file written beside weights for `transformers`.
const HUGGING_FACE_CONFIG: &str = "config.json";

/// Arguments of `gpipe-rs export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs export --run runs/1 -o exported
  gpipe-rs export --checkpoint runs/1/checkpoints/step-00000100 -o model.safetensors

In Python, `transformers.AutoModelForCausalLM.from_pretrained(\"exported\")` then has the model; and of a \
run from a .pt2 or of a `resnet50`, `model.load_state_dict(safetensors.torch.load_file(\"model.safetensors\"))`.")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    spoken: Spoken,
    /// A folder, made where it is missing, or a name that ends in .safetensors. Besides the
    /// weights of a `gpt` or a `llama`, with Hugging Face's names, config.json is written, and
    /// tokenizer.json and tokenizer_config.json: one of characters, or that of the model. Weights of
    /// a .pt2 have the names of its state_dict, those of other models the names of their layers
    /// (a `resnet50` those of torchvision), and nothing is beside them.
    #[arg(short, long, value_name = "DIR|FILE")]
    output: PathBuf,
    /// Print one JSON object with the files that were written.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    check_output(&args.output)?;
    let trained = Trained::read(&args.place, &args.spoken, zoo)?;
    if let Some(name) = trained.not_finite()? {
        return Err(Failure::Run(anyhow::anyhow!(
            "`{name}` has numbers that are NaN or infinite: the model's training has diverged, and \
             nothing was written; an older checkpoint may be better: --checkpoint DIR"
        )));
    }
    if !hugging_face::has(&trained.spec) {
        let path = file(&args.output)?;
        let saved = match trained.spec.exported() {
            Some(model) => model.save_state_dict(&path, &trained.weights),
            None => save_tensors(&path, &trained.weights),
        };
        saved.map_err(|error| Failure::Usage(format!("--output: {error:#}")))?;
        return told(args, &trained, &[path]);
    }
    let written = hugging_face::export_with(
        &args.output,
        &trained.spec,
        &trained.weights,
        trained.tokenizer_files().as_ref(),
    );
    let written = written.map_err(failed)?;
    told(args, &trained, &written)
}

/// Extension of the files that are written.
const ENDING: &str = "safetensors";

/// Rejects output paths with the extension of another kind of file, unless they are existing folders.
/// An extension begins with a letter: `model-0.5` has none.
fn check_output(path: &Path) -> Result<(), Failure> {
    let end = path.extension().and_then(OsStr::to_str);
    let is_ending = |own: &&str| *own != ENDING && own.starts_with(|own: char| own.is_alphabetic());
    let says_folder = path.to_string_lossy().ends_with(std::path::is_separator);
    let Some(end) = end
        .filter(is_ending)
        .filter(|_| !says_folder && !path.is_dir())
    else {
        return Ok(());
    };
    Err(Failure::Usage(format!(
        "--output {path}: no files of the kind .{end} are written: name one that ends in .{ENDING} \
         ({}), or a folder, if this is to be one as `{path}/`",
        path.with_extension(ENDING).display(),
        path = path.display(),
    )))
}

/// Returns the file for weights without a configuration, creating its folder if missing. Its name
/// differs from that of weights with one.
fn file(output: &Path) -> Result<PathBuf, Failure> {
    let path = if output.extension().is_some_and(|end| end == ENDING) {
        let folder = output.parent().filter(|own| !own.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|own| !own.exists()) {
            return Err(Failure::Usage(format!(
                "--output: {}: there is no folder {}: make it first",
                output.display(),
                folder.display()
            )));
        }
        output.to_owned()
    } else {
        std::fs::create_dir_all(output).map_err(|error| {
            let folder = output.display();
            Failure::Usage(format!("--output: {folder}: cannot be made: {error}"))
        })?;
        output.join(STATE_DICT)
    };
    let config = path.with_file_name(HUGGING_FACE_CONFIG);
    if path.file_name().is_some_and(|name| name == STATE_DICT) && config.exists() {
        return Err(Failure::Usage(format!(
            "--output: {}: another model is there already: choose another folder, or remove it",
            config.display()
        )));
    }
    Ok(path)
}

fn told(args: &Args, trained: &Trained, written: &[PathBuf]) -> Result<(), Failure> {
    if args.json {
        return output::print(&output::json(&json!({
            "model": trained.spec.name(),
            "files": written,
        })));
    }
    for path in written {
        super::say(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn failed(error: HuggingFaceError) -> Failure {
    match error {
        HuggingFaceError::Torch(error) => Failure::Run(error.into()),
        other => Failure::Usage(format!("--output: {other}")),
    }
}
