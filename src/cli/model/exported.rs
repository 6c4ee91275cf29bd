//! Models in files of `torch.export.save`.

use std::ops::RangeInclusive;
use std::path::Path;

use gpipe_partitioner::words::count;

use super::Chosen;
use super::flags::{Given, flag};
use gpipe_models::zoo::ModelSpec;
use gpipe_models::{ExportedModel, LossKind, NamedLoss};

/// Extension of exported programs.
pub(crate) const END: &str = "pt2";

/// The size of a program exported for sequences of any length.
const CONTEXT: &str = "context";

/// Extensions of other PyTorch files of weights or programs, which are opened to identify them.
const OTHERS: [&str; 7] = ["pt", "pth", "bin", "ckpt", "onnx", "safetensors", "zip"];

/// The requested loss.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AskedLoss {
    pub(crate) kind: Option<LossKind>,
    pub(crate) ignore_index: Option<i64>,
}

impl AskedLoss {
    fn named(self) -> Result<Option<NamedLoss>, String> {
        let named = self.kind.map(NamedLoss::from);
        match (self.ignore_index, self.kind) {
            (None, _) => Ok(named),
            (Some(index), Some(LossKind::CrossEntropy)) => {
                Ok(named.map(|own| own.ignore_index(index)))
            }
            (Some(_), _) => Err(format!(
                "--ignore-index is for --loss {}: targets of that number count nothing",
                LossKind::CrossEntropy
            )),
        }
    }
}

/// Whether this names an exported program, existing or not; with other extensions the file must exist.
pub(crate) fn is_exported(model: &str) -> bool {
    let path = Path::new(model);
    path.extension().is_some_and(|end| {
        let is = |own: &&str| end.eq_ignore_ascii_case(own);
        is(&END) || (OTHERS.iter().any(is) && path.is_file())
    })
}

/// Reads the model in a file, with the requested loss or the one that it computes itself, if any. Only
/// the size `context` may be chosen, if the program was exported for sequences of any length.
pub(crate) fn read(path: &Path, asked: AskedLoss, sizes: &Given) -> Result<ModelSpec, String> {
    let model = ExportedModel::open(path).map_err(|error| error.to_string())?;
    let own = || model.computes_a_loss().then(|| LossKind::Output.into());
    let loss = asked.named()?.or_else(own);
    let spec = model.spec(loss).map_err(|error| error.to_string())?;
    sizes.iter().try_fold(spec, |spec, (size, value)| {
        sized(&spec, size, value).map_err(|why| format!("{}: {why}", flag(size)))
    })
}

fn sized(spec: &ModelSpec, size: &str, value: &str) -> Result<ModelSpec, String> {
    if size != CONTEXT {
        let name = spec.name();
        return Err(format!(
            "the sizes of `{name}` are in the file, as PyTorch exported it"
        ));
    }
    let Some(own) = spec.entry().sizes().iter().find(|own| own.name() == size) else {
        return Err(fixed_context(spec));
    };
    let tokens = value.parse::<i64>().ok().filter(|own| *own > 0);
    let tokens = tokens.ok_or_else(|| format!("must be a whole number of {}", own.about()))?;
    spec.resized(&[&[tokens]])
        .map_err(|error| error.to_string())
}

/// The error for a context that cannot be changed.
fn fixed_context(spec: &ModelSpec) -> String {
    let name = spec.name();
    match spec.inputs() {
        [input] if input.is_tokens() => format!(
            "`{name}` was exported for sequences of {} tokens alone: export it with dynamic_shapes \
             in which dimension 1 is Dim.DYNAMIC, too",
            input.shape()[0]
        ),
        _ => format!("`{name}` does not take one sequence of tokens; its data decides its sizes"),
    }
}

/// Whether the model takes the micro-batches of so many samples: a program may have been exported for
/// some sizes only.
pub(crate) fn takes(spec: &ModelSpec, samples: usize, micro: usize) -> bool {
    let Some(model) = spec.exported() else {
        return true;
    };
    let micro = micro.clamp(1, samples.max(1));
    let sizes = model.micro_batch_sizes();
    sizes.contains(&(samples / micro)) && sizes.contains(&samples.div_ceil(micro))
}

/// Checks that the file of a trained program still exists, if a checksum was saved.
pub(crate) fn check_there(model: &str, trained: Option<&str>) -> Result<(), String> {
    if trained.is_none() || Path::new(model).exists() {
        return Ok(());
    }
    Err(format!(
        "the run was trained from the exported program {model}, which is not there: put it back, or \
         name it with --model FILE"
    ))
}

/// Checks that a file is the one that was trained.
pub(crate) fn check_same(spec: &ModelSpec, trained: Option<&str>) -> Result<(), String> {
    let (Some(model), Some(trained)) = (spec.exported(), trained) else {
        return Ok(());
    };
    let own = model.fingerprint();
    if own == trained {
        return Ok(());
    }
    Err(format!(
        "{}: it is another file than the one that was trained, whose checksum was {trained} and \
         not {own} (exported again, from a module of another name, say, it has another one): put \
         that one back, or name it with --model FILE if it lies elsewhere",
        model.path().display()
    ))
}

/// Returns a model of the zoo with the requested loss, if any.
///
/// # Errors
/// The model does not take this loss.
pub(crate) fn judged(spec: ModelSpec, asked: AskedLoss) -> Result<ModelSpec, String> {
    let flag = match (asked.kind, asked.ignore_index) {
        (None, None) => return Ok(spec),
        (Some(_), _) => "--loss",
        (None, Some(_)) => "--ignore-index",
    };
    let (name, others) = (spec.name(), spec.other_losses());
    let others: Vec<LossKind> = others.collect();
    let classes = || spec.learns_classes().then_some(LossKind::CrossEntropy);
    let asked = AskedLoss {
        kind: asked.kind.or_else(classes),
        ..asked
    };
    let takes_it = asked.kind.is_some_and(|kind| others.contains(&kind));
    // Classifiers have cross-entropy anyway.
    if !takes_it && others.iter().all(|own| *own == LossKind::CrossEntropy) {
        return Err(format!(
            "{flag}: `{name}` has a loss of its own; the flag is for programs that PyTorch exported \
             (--model FILE.{END}), and for `mlp`, which takes tables (--model mlp)"
        ));
    }
    let Some(loss) = asked.named()? else {
        return Ok(spec);
    };
    let judged = spec.judged_by(loss);
    judged.ok_or_else(|| {
        let others: Vec<&str> = others.iter().map(|own| own.name()).collect();
        format!(
            "--loss {}: `{name}` may be judged by {}",
            loss.kind(),
            others.join(", ")
        )
    })
}

impl Chosen {
    /// Checks that the program can be trained and has a loss.
    ///
    /// # Errors
    /// The error says which flag to add, or what to change in Python.
    pub(crate) fn check_trains(&self) -> Result<(), String> {
        let Some(model) = self.spec.exported() else {
            return Ok(());
        };
        let path = model.path().display();
        if let Some(why) = model.no_training() {
            return Err(format!("--model {path}: {why}"));
        }
        if self.loss().is_some() {
            return Ok(());
        }
        let kinds = LossKind::ALL.iter().filter(|own| **own != LossKind::Output);
        let names: Vec<&str> = kinds.map(|own| own.name()).collect();
        Err(format!(
            "--loss is missing: `{path}` computes none itself; say what its first output is judged \
             by: {}",
            names.join(", ")
        ))
    }

    /// Checks that micro-batches have a size that the program was exported for, and enough samples for
    /// its batch norms.
    ///
    /// # Errors
    /// The error says which sizes fit.
    pub(crate) fn check_micro(&self, batch: usize, micro: usize) -> Result<(), String> {
        let Some(model) = self.spec.exported() else {
            return Ok(());
        };
        let path = model.path().display();
        let micro = micro.clamp(1, batch.max(1));
        let (least, most) = (batch / micro, batch.div_ceil(micro));
        if takes(&self.spec, batch, micro) {
            let fewest = model.fewest_in_training();
            if least >= fewest {
                return Ok(());
            }
            return Err(format!(
                "--batch {batch} in --micro {micro} makes micro-batches of {least} sample, of which \
                 a batch norm of `{path}` can make no statistics: it has one value of each channel; \
                 use --batch {}, or --micro {}",
                fewest.saturating_mul(micro),
                (batch / fewest).max(1)
            ));
        }
        let sizes = model.micro_batch_sizes();
        let made = if least == most {
            count(most, "sample")
        } else {
            format!("{least} and {most}", most = count(most, "sample"))
        };
        Err(match model.micro_batch_size() {
            Some(size) => format!(
                "--batch {batch} in --micro {micro} makes micro-batches of {made}, but `{path}` was \
                 exported for {size}: use --batch {}, or export it with dynamic_shapes",
                size.saturating_mul(micro)
            ),
            None => format!(
                "--batch {batch} in --micro {micro} makes micro-batches of {made}, but `{path}` was \
                 exported for {}: choose others, or export it with another \
                 Dim(\"batch\", min=…, max=…)",
                range(&sizes)
            ),
        })
    }
}

/// Formats sizes such as `1 to 64`, `2`, `2 or more`.
pub(crate) fn range(sizes: &RangeInclusive<usize>) -> String {
    match (sizes.start(), sizes.end()) {
        (least, &usize::MAX) => format!("{least} or more"),
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// Notes that parts of the program have gradients of their own in Python, which its file does not hold.
pub(crate) fn note_of_gradients(spec: &ModelSpec) -> Option<String> {
    let model = spec.exported()?;
    let (first, others) = model.own_gradients().split_first()?;
    let others = match others.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "note: {}: {first}{others}: such gradients are not in the file, as torch.export records the forward \
         alone, and training has those of PyTorch's operators instead; `check_gradients` of \
         examples/export_model.py tells in Python which parameters that changes",
        model.path().display()
    ))
}

/// How to export the program so that it takes smaller micro-batches.
pub(crate) fn smaller(spec: &ModelSpec) -> String {
    let model = spec.exported();
    let least = model.map_or(1, |model| *model.micro_batch_sizes().start());
    match model.and_then(ExportedModel::micro_batch_size) {
        None if least > 1 => format!(
            "it was exported for {least} samples or more, as Dim.DYNAMIC and Dim.AUTO make it: export \
             it with Dim(\"batch\", min=1)"
        ),
        _ => "export it with a dynamic batch".to_owned(),
    }
}
