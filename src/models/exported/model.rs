//! An exported program, read but not built.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tch::Tensor;

use super::archive::Source;
use super::error::{ExportedError, Result};
use super::program::{Size, ValueId, ValueInfo};
use super::{Exported, data, dynamic, modes, state_dict};
use gpipe_torch::Sequential;

/// A program of `torch.export.save`: [`exported`](super::exported) with the rest of the file's
/// contents.
///
/// ```no_run
/// use gpipe::models::{ExportedModel, LossKind};
/// use gpipe::{Pipeline, tch::Device};
///
/// let file = ExportedModel::open("model.pt2")?;
/// let spec = file.spec(Some(LossKind::CrossEntropy.into()))?;
/// let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu, Device::Cpu], 4)?;
/// let (x, y) = spec.sample(8, 0)?;
/// pipe.train_step(x, y, spec.loss())?;
/// // For `load_state_dict`.
/// let mut weights = pipe.parameters()?;
/// weights.extend(pipe.buffers()?);
/// file.save_state_dict("model.safetensors", &weights)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ExportedModel {
    path: PathBuf,
    pub(super) own: Arc<Exported>,
    /// Sizes of the inputs by symbol: the example's, or those of [`ExportedModel::resized`].
    pub(super) sizes: Arc<HashMap<Arc<str>, i64>>,
    /// Whether the classes are in the less usual of two possible dimensions of an output.
    pub(super) turned: bool,
}

impl ExportedModel {
    /// Reads a file, with only the metadata of its weights: see [`exported`](super::exported).
    ///
    /// # Errors
    /// As [`exported`](super::exported).
    pub fn open(path: impl AsRef<Path>) -> std::result::Result<Self, ExportedError> {
        let path = path.as_ref();
        let own = Source::open(path).and_then(Exported::open);
        let own = own.map_err(|reason| ExportedError {
            path: path.to_owned(),
            reason,
        })?;
        Ok(Self {
            path: path.to_owned(),
            sizes: Arc::new(own.program.symbols()),
            turned: false,
            own: Arc::new(own),
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a checksum of the file's contents, in eight digits.
    pub fn fingerprint(&self) -> String {
        format!("{:08x}", self.sum())
    }

    /// Returns the checksum as a number.
    pub fn sum(&self) -> u32 {
        self.own.weights.fingerprint()
    }

    /// Returns the layers, not built yet.
    pub fn build(&self) -> Sequential {
        super::model(&self.own)
    }

    /// The same with the classes in the other dimension of an output that may have them in two: the
    /// second or the last.
    pub(crate) fn turned(&self) -> Option<Self> {
        let has_two = data::has_two_class_dimensions(&self.own.program);
        has_two.then(|| Self {
            turned: true,
            ..self.clone()
        })
    }

    /// Which of its outputs is a single number, which is then taken for its loss.
    pub(crate) fn own_loss(&self) -> Option<usize> {
        let mut outputs = self.own.program.outputs.iter();
        outputs.position(|id| data::is_single(&self.own.program.values[id.0]))
    }

    /// Whether one of its outputs is a single number, which can be used as its loss:
    /// [`LossKind::Output`](crate::LossKind::Output).
    pub fn computes_a_loss(&self) -> bool {
        self.own_loss().is_some()
    }

    /// Explains why it cannot be trained, if the file shows that.
    pub fn no_training(&self) -> Option<String> {
        modes::eval_only(&self.own.program)
    }

    /// Resizes the program to samples of these shapes, one for each input, if dimensions other than the
    /// samples' are dynamic.
    ///
    /// # Errors
    /// The model was not exported for a size.
    pub fn resized(&self, items: &[&[i64]]) -> std::result::Result<Self, ExportedError> {
        let sizes = self.with_path(dynamic::bound(&self.own.program, &self.sizes, items))?;
        Ok(Self {
            sizes: Arc::new(sizes),
            ..self.clone()
        })
    }

    /// Returns the dynamic dimensions of inputs other than the samples': the input's name, the
    /// dimension, and its valid sizes.
    pub fn dynamic(&self) -> Vec<(&str, usize, RangeInclusive<i64>)> {
        dynamic::dimensions(&self.own.program)
    }

    /// Describes custom gradients of the Python model, as far as the file shows them: a
    /// `torch.autograd.Function`, or a backward hook of a module. `torch.export` records only the
    /// forward, so the program uses the gradients of PyTorch's operators instead. Hooks on tensors
    /// leave no trace in a file.
    pub fn own_gradients(&self) -> &[String] {
        &self.own.program.own_gradients
    }

    /// Returns the names of the inputs in `forward`, in order.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        let program = &self.own.program;
        let name = |id: &ValueId| program.values[id.0].name.as_str();
        program.inputs.iter().map(name)
    }

    /// Returns the fixed micro-batch size, or `None` if it is dynamic.
    pub fn micro_batch_size(&self) -> Option<usize> {
        match self.batch()? {
            Size::Fixed(size) => usize::try_from(*size).ok(),
            _ => None,
        }
    }

    /// Returns the range of valid micro-batch sizes.
    pub fn micro_batch_sizes(&self) -> RangeInclusive<usize> {
        let (min, max) = match self.batch() {
            Some(Size::Fixed(size)) => (Some(*size), Some(*size)),
            Some(Size::Symbol(symbol)) => match self.own.program.ranges.get(&**symbol) {
                Some(range) => (range.min_val, range.max_val),
                None => (None, None),
            },
            _ => (None, None),
        };
        let count = |number: i64| usize::try_from(number).ok();
        let (min, max) = (min.and_then(count), max.and_then(count));
        min.unwrap_or(1).max(1)..=max.unwrap_or(usize::MAX)
    }

    /// Returns the smallest micro-batch size in training: two if a batch norm would otherwise have a
    /// single value per channel.
    pub fn fewest_in_training(&self) -> usize {
        modes::fewest_in_training(&self.own.program)
    }

    /// Returns the smallest number of values per channel that a sample gives a batch norm in training;
    /// `None` without batch norms.
    pub fn fewest_places_of_batch_norm(&self) -> Option<usize> {
        modes::fewest_places_of_batch_norm(&self.own.program)
    }

    /// Returns dimension 0 of the first input.
    fn batch(&self) -> Option<&Size> {
        let first = self.own.program.inputs.first()?;
        self.own.program.values[first.0].sizes.as_ref()?.first()
    }

    /// Returns the names, shapes and types of the model's `state_dict`.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn state_dict_layout(
        &self,
    ) -> std::result::Result<Vec<(String, Vec<i64>, tch::Kind)>, ExportedError> {
        self.with_path(state_dict::layout(&self.own))
    }

    /// Returns the whole `state_dict` with these weights, given by their names in the pipeline: tied
    /// ones under each name, and tensors that the program never uses as in the file.
    ///
    /// # Errors
    /// A weight is missing or has another shape, or the file cannot be read.
    pub fn state_dict(
        &self,
        weights: &[(String, Tensor)],
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        state_dict::with(&self.own, weights)
    }

    /// The inverse of [`ExportedModel::state_dict`]: converts a whole `state_dict` to weights by their
    /// names in the pipeline, for [`Pipeline::load`].
    ///
    /// [`Pipeline::load`]: gpipe_torch::Pipeline::load
    ///
    /// # Errors
    /// A name is missing that is not tied to an existing one, or is not the model's; a tensor has
    /// another shape, or is integer where it must not be; or tied weights differ.
    pub fn weights(
        &self,
        state_dict: Vec<(String, Tensor)>,
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        state_dict::without(&self.own, state_dict)
    }

    /// Returns the prefix of all names of a `state_dict` saved from a wrapper, such as `module.` of
    /// `DistributedDataParallel` or `_orig_mod.` of `torch.compile`. [`ExportedModel::weights`] ignores
    /// it.
    pub fn prefix<'a>(&self, state_dict: &'a [(String, Tensor)]) -> Option<&'a str> {
        state_dict::prefix(&self.own, state_dict)
    }

    /// Returns the prefix of all names of the program that a `state_dict` lacks, if a wrapper of the
    /// model was exported, such as one that returns its logits. [`ExportedModel::weights`] adds it.
    pub fn missing_prefix(&self, state_dict: &[(String, Tensor)]) -> Option<&str> {
        state_dict::missing_prefix(&self.own, state_dict)
    }

    /// Writes [`ExportedModel::state_dict`] as safetensors, for `load_state_dict(load_file(path))`;
    /// replaces an existing file.
    ///
    /// # Errors
    /// As [`ExportedModel::state_dict`], or the file cannot be written.
    pub fn save_state_dict(
        &self,
        path: impl AsRef<Path>,
        weights: &[(String, Tensor)],
    ) -> anyhow::Result<()> {
        state_dict::save(path.as_ref(), &self.state_dict(weights)?)
    }

    /// Returns the shape of a value, samples first; `None` if unknown.
    pub(super) fn shape(&self, value: &ValueInfo) -> Option<Vec<i64>> {
        let own = dynamic::shape(value, &self.sizes);
        // Sizes of unknown functions are known only for the example's inputs.
        let is_example = || *self.sizes == self.own.program.symbols();
        own.or_else(|| value.example.clone().filter(|_| is_example()))
    }

    pub(crate) fn with_path<T>(&self, result: Result<T>) -> std::result::Result<T, ExportedError> {
        result.map_err(|reason| ExportedError {
            path: self.path.clone(),
            reason,
        })
    }
}
