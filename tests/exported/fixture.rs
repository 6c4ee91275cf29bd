//! Files written by `tests/fixtures/exported/make.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gpipe::tch::{Kind, Reduction, Tensor};
use gpipe::{Loss, Pipeline, PipelineBuilder, Sequential, Values, models, settings::on_values};

use crate::support::cpus;

/// Micro-batches per batch of a fixture.
pub(crate) const MICRO_BATCHES: usize = 3;

/// Fixtures that compute no loss and were exported for any batch size.
pub(crate) const ALL: [&str; 19] = [
    "conformer",
    "convnext",
    "decoder",
    "dropout",
    "encoder",
    "frames",
    "gpt",
    "grouped",
    "lengths",
    "lstm",
    "mixture",
    "mlp",
    "mobilenet",
    "resnet",
    "seq2seq",
    "series",
    "unet",
    "vit",
    "wav2vec",
];

/// All fixtures: one more computes its loss itself, and one was exported for micro-batches of two.
pub(crate) fn every() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().chain([JUDGED, "fixed"])
}

/// The fixture that computes its loss itself, as its first output.
pub(crate) const JUDGED: &str = "judged";

/// The fixture that draws random numbers, which eager does differently.
pub(crate) const DRAWS: &str = "dropout";

/// A model, and eager PyTorch's results for it.
pub(crate) struct Fixture {
    pub(crate) name: String,
    told: BTreeMap<String, Tensor>,
}

/// The fixtures' folder, and whether its numbers are from this machine, so that bits can be compared.
fn folder() -> (PathBuf, bool) {
    if let Some(folder) = std::env::var_os("GPIPE_EXPORTED") {
        return (folder.into(), true);
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    (root.join("tests/fixtures/exported"), false)
}

pub(crate) fn path(name: &str) -> PathBuf {
    folder().0.join(format!("{name}.pt2"))
}

/// The script that wrote the fixtures.
pub(crate) fn script() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/fixtures/exported/make.py")
}

/// Path of eager PyTorch's results for a model.
pub(crate) fn told_path(name: &str) -> PathBuf {
    folder().0.join(format!("{name}.safetensors"))
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let told = Tensor::read_safetensors(told_path(name));
        Self {
            name: name.to_owned(),
            told: told.unwrap().into_iter().collect(),
        }
    }

    pub(crate) fn model(&self) -> Sequential {
        models::exported(path(&self.name)).unwrap()
    }

    pub(crate) fn builder(&self, stages: usize) -> PipelineBuilder {
        Pipeline::builder(self.model())
            .devices(&cpus(stages))
            .micro_batches(MICRO_BATCHES)
            .threads_per_stage(1)
            .seed(5)
    }

    pub(crate) fn told(&self, name: &str) -> &Tensor {
        &self.told[name]
    }

    /// Entries whose names begin with `prefix`, without it.
    pub(crate) fn all(&self, prefix: &str) -> Vec<(String, Tensor)> {
        let own = self.told.iter().filter_map(|(name, tensor)| {
            let name = name.strip_prefix(prefix)?;
            Some((name.to_owned(), tensor.shallow_clone()))
        });
        own.collect()
    }

    pub(crate) fn inputs(&self) -> Values {
        self.all("x").into_iter().map(|(_, x)| x).collect()
    }

    /// One step; *returns* the loss.
    pub(crate) fn step(&self, pipe: &mut Pipeline) -> f64 {
        self.step_with_output(pipe).0
    }

    /// One step; *returns* the loss and the model's output for the mini-batch.
    pub(crate) fn step_with_output(&self, pipe: &mut Pipeline) -> (f64, Tensor) {
        let judged = self.name == JUDGED;
        let given = Arc::new(Mutex::new(Vec::new()));
        let outputs = Arc::clone(&given);
        let loss = on_values(move |out: &Values, y: &Values| -> anyhow::Result<Loss> {
            let own = out.present().last().expect("a model has an output");
            outputs.lock().unwrap().push(own.detach().copy());
            Ok(Loss::mean(match out.get(0) {
                Some(loss) if judged => loss.shallow_clone(),
                _ => out.one()?.f_mse_loss(y.one()?, Reduction::Mean)?,
            }))
        });
        let y = if judged {
            Values::new()
        } else {
            Values::from(self.told("y"))
        };
        let report = pipe.train_step(self.inputs(), y, loss).unwrap();
        let loss = report.read().unwrap().loss;
        let outputs = given.lock().unwrap();
        (loss, Tensor::cat(&outputs, 0))
    }
}

/// Whether the numbers are from this machine, so that bits can be compared.
pub(crate) fn are_of_this_machine() -> bool {
    folder().1
}

/// Compares the pipeline's results with eager's: bit for bit if those were computed on this machine,
/// otherwise within the differences of processors.
#[track_caller]
pub(crate) fn assert_as_told(own: &Tensor, told: &Tensor, what: &str) {
    if folder().1 {
        let apart = (own - told).abs().max();
        assert!(own.equal(told), "{what} differs from eager by {apart}");
    } else {
        assert_near(own, told, what);
    }
}

/// Within some roundings of the largest element: 1.4e-5 of it were seen between two processors. Values that
/// cancel to zero, such as the gradient of a bias before a norm, consist of rounding errors of larger
/// numbers, which differ among processors.
#[track_caller]
pub(crate) fn assert_near(own: &Tensor, told: &Tensor, what: &str) {
    assert_eq!(own.size(), told.size(), "{what}");
    if told.numel() == 0 {
        return;
    }
    let scale = told.abs().max().to_kind(Kind::Double).double_value(&[]);
    let apart = (own - told).abs().max().to_kind(Kind::Double);
    let apart = apart.double_value(&[]);
    assert!(
        apart <= 5e-5 * scale.max(1e-2),
        "{what} differs from eager by {apart}, of {scale}"
    );
}
