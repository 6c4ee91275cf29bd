//! Models from files that `torch.export.save` writes (`.pt2`).
//!
//! [`exported`] reads the program and converts it to a chain of layers, named after their modules in
//! Python. Each runs its part of the graph through libtorch's dispatcher, and reads its own weights
//! when its stage is built.
//!
//! | file | does |
//! |---|---|
//! | `archive` | the zip archive: entries by name |
//! | `schema`, `read`, `arguments`, `operators` | converts JSON to a program of numbered values |
//! | `backward` | detects custom gradients that the file lacks |
//! | `weights`, `form` | tensors of the archive, checked against the program |
//! | `cut`, `least` | divides nodes into layers |
//! | `parts` | inputs, outputs and variables of each layer |
//! | `compile`, `layer` | compiles nodes to steps, and runs them |
//! | `grouped` | the product of experts, which libtorch lacks |
//! | `trusted`, `recurrent` | checks for operators that do not check their arguments |
//! | `modes`, `counter` | training and evaluation; buffers that count steps |
//! | `dynamic` | dimensions with sizes from the data |
//! | `expression` | sizes computed from others |
//! | `inputs` | checks inputs against the export |
//! | `model`, `spec` | the file as a model of the zoo, with its data and a loss |
//! | `state_dict` | trained weights under their Python names |

mod archive;
mod arguments;
mod backward;
mod compile;
mod counter;
mod cut;
mod data;
mod dynamic;
mod error;
mod expression;
mod form;
mod grouped;
mod inputs;
mod layer;
mod least;
mod model;
mod modes;
mod operators;
mod other_kinds;
mod parts;
mod program;
mod read;
mod recurrent;
mod scalars;
mod schema;
mod state_dict;
mod trusted;
mod weights;

use std::path::Path;
use std::sync::Arc;

pub(crate) use error::unsupported;
pub use error::{ExportedError, ExportedReason};
pub use model::ExportedModel;
pub use other_kinds::EXPORT;
pub use state_dict::save as save_tensors;

use self::archive::{Archive, Source};
use self::error::{Result, damaged};
use self::inputs::Check;
use self::parts::Part;
use self::program::Program;
use self::weights::Weights;
use gpipe_torch::Sequential;

/// Programs have some megabytes of JSON.
const MAX_JSON: u64 = 1 << 30;

/// Reads a model that `torch.export.save` of PyTorch 2.11 wrote.
///
/// The layers are the model's modules, such as `layers.3`; their parameters and buffers have the
/// names of the model's `state_dict`. Weights are read when a stage is built, each by its stage,
/// so the file must stay where it is until then.
///
/// *Shapes*: the layers take the tensors that the model's `forward` takes, in that order, and
/// give those that it returns. Dimension 0 should have been exported as dynamic; else every
/// micro-batch must have as many samples as the example had.
///
/// *Determinism*: dropout and other draws are those of [`Layer`](gpipe_torch::Layer), not those of
/// PyTorch's generator. Batch norm counts a mini-batch once, as
/// [`BatchNorm`](gpipe_torch::layers::BatchNorm) does.
///
/// # Errors
/// [`ExportedError`]: the file cannot be read or is damaged, is of another version, or the
/// program does what is not known; its place in the model is named.
///
/// # Examples
/// ```no_run
/// use gpipe::{Pipeline, models, tch::Device};
///
/// let model = models::exported("model.pt2")?;
/// let names: Vec<_> = model.names().map(str::to_owned).collect();
/// let mut pipe = Pipeline::new(model, &[Device::Cpu, Device::Cpu], 4)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "torch.export")]
#[doc(alias = "pt2")]
pub fn exported(path: impl AsRef<Path>) -> std::result::Result<Sequential, ExportedError> {
    ExportedModel::open(path).map(|model| model.build())
}

/// As [`exported`], of a file's bytes.
///
/// # Errors
/// As [`exported`], without the path.
pub fn exported_bytes(
    bytes: impl Into<Arc<[u8]>>,
) -> std::result::Result<Sequential, ExportedReason> {
    Ok(model(&Arc::new(Exported::open(Source::Bytes(
        bytes.into(),
    ))?)))
}

/// A file, understood.
#[derive(Debug)]
struct Exported {
    program: Program,
    weights: Weights,
    parts: Vec<Part>,
    check: Check,
}

fn model(exported: &Arc<Exported>) -> Sequential {
    let mut model = Sequential::new();
    let mut ties = Vec::new();
    for (number, part) in exported.parts.iter().enumerate() {
        let own = Arc::clone(exported);
        model = model.try_layer(part.name.clone(), move |path| {
            let check = (number == 0).then(|| own.check.clone());
            layer::Stretch::new(&own.program, &own.weights, &own.parts[number], check, path)
        });
        let names = part.variables.iter().filter_map(|own| own.name.clone());
        model = model.whole_names(names.collect());
        for variable in &part.variables {
            if let (Some(owner), Some(copy)) = (&variable.tied_to, &variable.name) {
                ties.push((owner.clone(), copy.clone()));
            }
        }
    }
    for (owner, copy) in ties {
        model = model.tie(owner, copy);
    }
    model
}

impl Exported {
    fn open(source: Source) -> Result<Self> {
        let archive = Archive::new(source)?;
        header(&archive)?;
        let models = archive.names("models/");
        let [name] = models[..] else {
            let why = format!("has {} models: one is read", models.len());
            return Err(damaged("the archive", why));
        };
        let name = name.to_owned();
        let own = name.strip_prefix("models/").unwrap_or(&name);
        let own = own.strip_suffix(".json").unwrap_or(own).to_owned();
        if archive.size(&name).unwrap_or(0) > MAX_JSON {
            return Err(damaged(name, "has more than a gibibyte"));
        }
        let json = archive.read(&name)?;
        version(&name, &json)?;
        let program = serde_json::from_slice(&json);
        let program = program.map_err(|error| damaged(&name, error.to_string()))?;
        drop(json);
        let mut program = read::read(program)?;
        let weights = Weights::open(archive, &own)?;
        weights.check(&program)?;
        let parts = parts::split(&mut program, &weights)?;
        Ok(Self {
            check: Check::of(&program),
            program,
            weights,
            parts,
        })
    }
}

/// Whether it is an archive of the kind that is read.
fn header(archive: &Archive) -> Result<()> {
    for (name, wanted) in [
        ("archive_format", "pt2"),
        ("archive_version", "0"),
        ("byteorder", "little"),
    ] {
        let found = archive.read(name)?;
        let found = String::from_utf8_lossy(&found).trim().to_owned();
        if found != wanted {
            let found = found.chars().take(40).collect();
            return Err(wrong_version(name, found, wanted));
        }
    }
    Ok(())
}

fn version(name: &str, json: &[u8]) -> Result<()> {
    let own: schema::Versioned =
        serde_json::from_slice(json).map_err(|error| damaged(name, error.to_string()))?;
    let (major, minor) = schema::VERSION;
    let found = own.schema_version;
    if (found.major, found.minor) == (major, minor) {
        return Ok(());
    }
    let by = own.torch_version.unwrap_or_default();
    let by: String = by.chars().take(40).collect();
    let found = format!("{}.{} (PyTorch {by})", found.major, found.minor);
    let wanted = format!("{major}.{minor}");
    Err(wrong_version("the schema's version", found, &wanted))
}

fn wrong_version(what: &str, found: String, wanted: &str) -> error::ExportedReason {
    ExportedReason::Version {
        what: what.to_owned(),
        found,
        wanted: wanted.to_owned(),
    }
}
