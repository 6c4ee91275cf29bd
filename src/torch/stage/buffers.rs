//! A stage's buffers, and the values that layers find in them.
//!
//! A layer may read a buffer that its forward updates: the vector of spectral norm, a running mean
//! that is subtracted. By the time its forward is recomputed, later micro-batches have updated the
//! buffer. So a segment that recomputes saves its buffers' values, and its second run finds these;
//! afterwards the current ones are restored. Only moving buffers are saved: those that a first run
//! was seen to change, and those written to since the step began.

use std::collections::HashSet;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::error::TorchError;
use crate::ffi::{self, SavedTensorPool};

/// Values that a forward found in moving buffers, by the buffers' numbers on the stage. The others
/// had their values from the beginning of the step.
pub(super) type BufferValues = Vec<(usize, Tensor)>;

/// The buffers of a stage's layers (batch-norm statistics, say).
#[derive(Debug)]
pub(super) struct Buffers {
    /// All buffers, named by layer and buffer.
    all: Vec<(String, Tensor)>,
    /// Range of each layer's buffers.
    of_layers: Vec<Range<usize>>,
    /// Copies of their values before the step.
    saved: Vec<Tensor>,
    /// How often each had been written to when the step began.
    began: Vec<i64>,
    /// Buffers that a first run changed.
    moved: HashSet<usize>,
    /// New values to set if the step counts; `None` if the layers update them themselves.
    pending: Vec<Option<Tensor>>,
}

/// State of some layers' buffers before these layers run for the first time.
#[derive(Debug)]
pub(super) struct BeforeFirstRun {
    numbers: Range<usize>,
    /// The buffers, hidden from autograd, and copies of their values.
    saved: Vec<(Tensor, Tensor)>,
    changes: Vec<i64>,
}

impl Buffers {
    /// Collects the buffers of each layer.
    pub(super) fn new(by_layer: Vec<Vec<(String, Tensor)>>) -> Self {
        Self {
            of_layers: places(by_layer.iter().map(Vec::len)),
            all: by_layer.into_iter().flatten().collect(),
            saved: Vec::new(),
            began: Vec::new(),
            moved: HashSet::new(),
            pending: Vec::new(),
        }
    }

    /// Names and handles, by layer and name.
    pub(super) fn named(&self) -> &[(String, Tensor)] {
        &self.all
    }

    // A step, from its beginning to its end.

    /// A training step begins: keeps what they hold.
    pub(super) fn save(&mut self) -> Result<(), TorchError> {
        self.began = self.changes(0..self.all.len())?;
        // If a copy fails, the step has not begun and nothing needs to be restored.
        self.saved.clear();
        let copies = self.all.iter().map(|(_, buffer)| ffi::copy(buffer));
        self.saved = copies.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Drops what they held before the last step.
    pub(super) fn drop_saved(&mut self) {
        self.saved.clear();
    }

    /// The step is to leave this in them, one entry a buffer, unless that is absent.
    ///
    /// # Errors
    /// There are more or fewer buffers.
    pub(super) fn set_pending(&mut self, values: Vec<Option<Tensor>>) -> Result<(), TorchError> {
        let (given, own) = (values.len(), self.all.len());
        if given != own {
            return Err(TorchError::new(format!(
                "a replica sent {given} buffers, and the stage has {own}"
            )));
        }
        self.pending = values;
        Ok(())
    }

    /// Returns whether there are new values to set if the step counts.
    pub(super) fn have_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The step counts.
    pub(super) fn commit(&mut self) -> Result<(), TorchError> {
        let pending = std::mem::take(&mut self.pending);
        tch::no_grad(|| {
            let all = self.all.iter().zip(&pending);
            let mut present = all.filter_map(|((_, buffer), new)| Some((buffer, new.as_ref()?)));
            present.try_for_each(|(buffer, new)| buffer.shallow_clone().f_copy_(new).map(drop))
        })?;
        Ok(())
    }

    /// The first that has changed since the step began, and its layer's number. `values`: also
    /// where that was not counted, which has the host wait for an accelerator.
    pub(super) fn moved_in_step(&self, values: bool) -> Result<Option<(usize, &str)>, TorchError> {
        let now = self.changes(0..self.all.len())?;
        for (number, (name, buffer)) in self.all.iter().enumerate() {
            let (Some(began), Some(saved)) = (self.began.get(number), self.saved.get(number))
            else {
                continue;
            };
            if now[number] != *began || values && !same(buffer, saved) {
                let layer = self.of_layers.iter().position(|own| own.contains(&number));
                return Ok(Some((layer.unwrap_or_default(), name)));
            }
        }
        Ok(None)
    }

    /// Copies of those that are not what they were; `before` is from [`Buffers::copies`] of
    /// all layers.
    pub(super) fn changed_since(
        before: &[(Tensor, Tensor)],
    ) -> Result<Vec<Option<Tensor>>, TorchError> {
        let changed = |(buffer, old): &(Tensor, Tensor)| {
            let other = !same(buffer, old);
            other.then(|| ffi::copy(buffer)).transpose()
        };
        before.iter().map(changed).collect()
    }

    /// Puts back what they held before the step.
    pub(super) fn undo(&mut self) {
        self.pending.clear();
        // Copies between tensors that were made as copies of each other.
        let saved = std::mem::take(&mut self.saved);
        tch::no_grad(|| {
            for ((_, buffer), saved) in self.all.iter().zip(&saved) {
                let _ = buffer.shallow_clone().f_copy_(saved);
            }
        });
    }

    /// Undoes the step if a number on their device is 1.
    pub(super) fn undo_where(&mut self, found_inf: &Tensor) -> Result<(), TorchError> {
        let undone = tch::no_grad(|| -> Result<(), TorchError> {
            let bad = found_inf.f_to_kind(Kind::Bool)?;
            for ((_, buffer), saved) in self.all.iter().zip(&self.saved) {
                let right = saved.f_where_self(&bad, buffer)?;
                buffer.shallow_clone().f_copy_(&right)?;
            }
            Ok(())
        });
        // Repeated after an error.
        undone.inspect(|()| self.saved.clear())
    }

    // Runs of layers.

    /// The buffers of some layers, past autograd's eyes, and copies of what they hold.
    pub(super) fn copies(
        &self,
        layers: &Range<usize>,
    ) -> Result<Vec<(Tensor, Tensor)>, TorchError> {
        let buffers = self.all[self.numbers(layers)].iter();
        buffers
            .map(|(_, buffer)| Ok((buffer.data(), ffi::copy(buffer)?)))
            .collect()
    }

    /// Saves the buffers that a first run of some layers may have to restore.
    pub(super) fn before_first_run(
        &self,
        layers: &Range<usize>,
    ) -> Result<BeforeFirstRun, TorchError> {
        let numbers = self.numbers(layers);
        Ok(BeforeFirstRun {
            saved: self.copies(layers)?,
            changes: self.changes(numbers.clone())?,
            numbers,
        })
    }

    /// Notes which buffers a first run of some layers has changed. Not all writes are
    /// counted: those of libtorch's own batch norm, say, or through `Tensor::data`.
    pub(super) fn note_moved(&mut self, before: &BeforeFirstRun) -> Result<(), TorchError> {
        let now = self.changes(before.numbers.clone())?;
        for (place, number) in before.numbers.clone().enumerate() {
            let (buffer, saved) = &before.saved[place];
            // Values that cannot be compared count as changed.
            let same = || buffer.f_equal(saved).unwrap_or(false);
            if now[place] != before.changes[place] || !same() {
                self.moved.insert(number);
            }
        }
        Ok(())
    }

    /// Returns the current values of the layers' moving buffers.
    pub(super) fn moving(&self, layers: &Range<usize>) -> Result<BufferValues, TorchError> {
        let mut values = BufferValues::new();
        for number in self.numbers(layers) {
            if self.has_moved(number)? {
                values.push((number, ffi::copy(&self.all[number].1)?));
            }
        }
        Ok(values)
    }

    /// Puts into the layers' buffers what their first run found there, for another run.
    pub(super) fn rewind(
        &self,
        layers: &Range<usize>,
        found: &BufferValues,
        device: Device,
    ) -> Result<Rewound, TorchError> {
        let now = self.copies(layers)?;
        let displaced = self.displaced(layers, found)?;
        let mut saved_pool = None;
        if !displaced.is_empty() {
            restore(&displaced)?;
            saved_pool = Some(SavedTensorPool::new(device, 0)?);
        }
        Ok(Rewound {
            now,
            displaced,
            saved_pool,
        })
    }

    /// The layers' buffers that move, past autograd's eyes, and what was in them.
    fn displaced(
        &self,
        layers: &Range<usize>,
        found: &BufferValues,
    ) -> Result<Vec<(Tensor, Tensor)>, TorchError> {
        let mut displaced = Vec::new();
        for number in self.numbers(layers) {
            let kept = found.iter().find(|(kept, _)| *kept == number);
            let value = match kept {
                Some((_, value)) => value,
                None if self.has_moved(number)? => &self.saved[number],
                None => continue,
            };
            displaced.push((self.all[number].1.data(), value.shallow_clone()));
        }
        Ok(displaced)
    }

    /// Returns whether the buffer may have changed since the step began.
    fn has_moved(&self, number: usize) -> Result<bool, TorchError> {
        if self.moved.contains(&number) {
            return Ok(true);
        }
        let began = self.began.get(number);
        Ok(began != Some(&ffi::changes(&self.all[number].1)?))
    }

    /// Returns how often buffers have been written to.
    fn changes(&self, numbers: Range<usize>) -> Result<Vec<i64>, TorchError> {
        let buffers = self.all[numbers].iter();
        buffers.map(|(_, buffer)| ffi::changes(buffer)).collect()
    }

    /// The numbers of some layers' buffers.
    fn numbers(&self, layers: &Range<usize>) -> Range<usize> {
        let places = &self.of_layers[layers.clone()];
        let start = places.first().map_or(0, |first| first.start);
        start..places.last().map_or(start, |last| last.end)
    }
}

impl BeforeFirstRun {
    /// The run does not count.
    pub(super) fn restore(&self) -> Result<(), TorchError> {
        restore(&self.saved)
    }
}

/// Buffers that hold for a while what they held before; see [`Buffers::rewind`].
#[derive(Debug)]
pub(super) struct Rewound {
    /// The buffers, and the values that they get back.
    now: Vec<(Tensor, Tensor)>,
    /// Buffers with temporary values, and their current ones.
    displaced: Vec<(Tensor, Tensor)>,
    /// Tensors that autograd saves meanwhile, if there are such buffers.
    saved_pool: Option<SavedTensorPool>,
}

impl Rewound {
    /// Runs layers with them; afterwards they hold again what they did.
    pub(super) fn run<T>(self, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let scope = self.saved_pool.as_ref().map(SavedTensorPool::enter);
        let mut done = body();
        drop(scope);
        if let (Ok(_), Some(saved_pool)) = (&done, &self.saved_pool)
            && let Err(error) = self.keep_values(saved_pool)
        {
            done = Err(error.into());
        }
        restore(&self.now)?;
        done
    }

    /// Replaces buffers saved by autograd by copies of their values, as the buffers will have
    /// changed by the time of the backward.
    fn keep_values(&self, saved_pool: &SavedTensorPool) -> Result<(), TorchError> {
        for number in 0..saved_pool.len() {
            let Some((memory, _)) = saved_pool.on_device(number)? else {
                continue;
            };
            let mut buffers = self.displaced.iter();
            if buffers.any(|(buffer, _)| holds(&memory, buffer)) {
                saved_pool.set_on_device(number, &ffi::copy(&memory)?)?;
            }
        }
        Ok(())
    }
}

/// Returns the range of each layer's buffers among all.
fn places(counts: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let place = |end: &mut usize, count| {
        let start = *end;
        *end += count;
        Some(start..*end)
    };
    counts.scan(0, place).collect()
}

/// Returns whether a tensor begins in these bytes.
fn holds(memory: &Tensor, tensor: &Tensor) -> bool {
    let begin = memory.data_ptr() as usize;
    (begin..begin + memory.numel()).contains(&(tensor.data_ptr() as usize))
}

/// Returns whether two tensors are equal, NaN being equal to NaN. Incomparable ones are not.
fn same(one: &Tensor, other: &Tensor) -> bool {
    let equal = || one.f_equal(other).unwrap_or(false);
    equal() || one.f_allclose(other, 0.0, 0.0, true).unwrap_or(false)
}

/// Puts saved values back, past autograd's eyes: graphs may have saved these tensors.
pub(super) fn restore(saved: &[(Tensor, Tensor)]) -> Result<(), TorchError> {
    tch::no_grad(|| {
        saved
            .iter()
            .try_for_each(|(tensor, before)| tensor.shallow_clone().f_copy_(before).map(drop))
    })?;
    Ok(())
}
