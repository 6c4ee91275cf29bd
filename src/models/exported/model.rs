//! A file that was read, before anything is made of it.

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

/// A program that `torch.export.save` wrote: [`exported`](super::exported) with what the file says
/// besides.
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
/// // What `load_state_dict` takes.
/// let mut weights = pipe.parameters()?;
/// weights.extend(pipe.buffers()?);
/// file.save_state_dict("model.safetensors", &weights)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ExportedModel {
    path: PathBuf,
    pub(super) own: Arc<Exported>,
    /// By symbol the sizes of the inputs: the example's, or those of [`ExportedModel::resized`].
    pub(super) sizes: Arc<HashMap<Arc<str>, i64>>,
    /// Whether classes are in the other dimension of an output that may have them in two.
    pub(super) turned: bool,
}

impl ExportedModel {
    /// Reads a file, of its weights only what they are: see [`exported`](super::exported).
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

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A checksum of all that is in the file, in eight digits.
    pub fn fingerprint(&self) -> String {
        format!("{:08x}", self.sum())
    }

    /// The same as a number.
    pub fn sum(&self) -> u32 {
        self.own.weights.fingerprint()
    }

    /// The layers, which are not built yet.
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

    /// Whether one of its outputs is a single number, which is then taken for its loss:
    /// [`LossKind::Output`](crate::LossKind::Output).
    pub fn computes_a_loss(&self) -> bool {
        self.own_loss().is_some()
    }

    /// Why it cannot be trained, where its file says that it cannot.
    pub fn no_training(&self) -> Option<String> {
        modes::eval_only(&self.own.program)
    }

    /// The same for samples of these shapes, one for each input, where dimensions besides the samples'
    /// were exported as dynamic.
    ///
    /// # Errors
    /// A size is none for which the model was exported.
    pub fn resized(&self, items: &[&[i64]]) -> std::result::Result<Self, ExportedError> {
        let sizes = self.with_path(dynamic::bound(&self.own.program, &self.sizes, items))?;
        Ok(Self {
            sizes: Arc::new(sizes),
            ..self.clone()
        })
    }

    /// The dynamic dimensions of inputs besides the samples': the input's name, the dimension, and the
    /// sizes that it may have.
    pub fn dynamic(&self) -> Vec<(&str, usize, RangeInclusive<i64>)> {
        dynamic::dimensions(&self.own.program)
    }

    /// What has a gradient of its own in Python, as far as the file shows it: a
    /// `torch.autograd.Function`, a backward hook of a module. `torch.export` records the forward
    /// alone, so that the program has the gradients of PyTorch's operators instead. Hooks on tensors
    /// leave no trace in a file.
    pub fn own_gradients(&self) -> &[String] {
        &self.own.program.own_gradients
    }

    /// What `forward` calls its inputs, in order.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        let program = &self.own.program;
        let name = |id: &ValueId| program.values[id.0].name.as_str();
        program.inputs.iter().map(name)
    }

    /// How many samples each micro-batch must have; none where that is free.
    pub fn micro_batch_size(&self) -> Option<usize> {
        match self.batch()? {
            Size::Fixed(size) => usize::try_from(*size).ok(),
            _ => None,
        }
    }

    /// The fewest and the most samples that a micro-batch may have.
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

    /// The fewest samples that a micro-batch may have in training: two where a batch norm would
    /// have a single value of each channel.
    pub fn fewest_in_training(&self) -> usize {
        modes::fewest_in_training(&self.own.program)
    }

    /// The values of a channel that a sample gives a batch norm in training, where it gives fewest;
    /// none where there is no batch norm.
    pub fn fewest_places_of_batch_norm(&self) -> Option<usize> {
        modes::fewest_places_of_batch_norm(&self.own.program)
    }

    /// Dimension 0 of the first input.
    fn batch(&self) -> Option<&Size> {
        let first = self.own.program.inputs.first()?;
        self.own.program.values[first.0].sizes.as_ref()?.first()
    }

    /// The names, shapes and kinds of the model's `state_dict`.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn state_dict_layout(
        &self,
    ) -> std::result::Result<Vec<(String, Vec<i64>, tch::Kind)>, ExportedError> {
        self.with_path(state_dict::layout(&self.own))
    }

    /// The whole `state_dict` with these weights, by their names in the pipeline: tied ones under
    /// each of their names, and what the program never uses as it is in the file.
    ///
    /// # Errors
    /// A weight is missing or of another shape; the file cannot be read.
    pub fn state_dict(
        &self,
        weights: &[(String, Tensor)],
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        state_dict::with(&self.own, weights)
    }

    /// The other way around: weights by their names in the pipeline, for [`Pipeline::load`], from a
    /// whole `state_dict`.
    ///
    /// [`Pipeline::load`]: gpipe_torch::Pipeline::load
    ///
    /// # Errors
    /// A name is missing that is not tied to one that is there, or one is not the model's; a tensor has
    /// another shape, or is whole numbers in place of others; tied weights differ.
    pub fn weights(
        &self,
        state_dict: Vec<(String, Tensor)>,
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        state_dict::without(&self.own, state_dict)
    }

    /// What stands before every name of a `state_dict` because that of a wrapper was saved, such as
    /// `module.` of `DistributedDataParallel` or `_orig_mod.` of `torch.compile`, and which
    /// [`ExportedModel::weights`] leaves out.
    pub fn prefix<'a>(&self, state_dict: &'a [(String, Tensor)]) -> Option<&'a str> {
        state_dict::prefix(&self.own, state_dict)
    }

    /// What stands before every name of the program and of no name of a `state_dict`, as a wrapper of the
    /// model was exported, such as one that returns its logits; [`ExportedModel::weights`] adds it.
    pub fn missing_prefix(&self, state_dict: &[(String, Tensor)]) -> Option<&str> {
        state_dict::missing_prefix(&self.own, state_dict)
    }

    /// Writes [`ExportedModel::state_dict`] as safetensors, for `load_state_dict(load_file(path))`;
    /// a file that is there is replaced.
    ///
    /// # Errors
    /// As [`ExportedModel::state_dict`], and where the file cannot be written.
    pub fn save_state_dict(
        &self,
        path: impl AsRef<Path>,
        weights: &[(String, Tensor)],
    ) -> anyhow::Result<()> {
        state_dict::save(path.as_ref(), &self.state_dict(weights)?)
    }

    /// The shape of a value, samples first; none where it is not known.
    pub(super) fn shape(&self, value: &ValueInfo) -> Option<Vec<i64>> {
        let own = dynamic::shape(value, &self.sizes);
        // What a function is that is not known is not known for other sizes.
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
