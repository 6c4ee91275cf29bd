//! What layers find in their buffers.
//!
//! A layer may read a buffer that its forward moves: the vector of spectral norm, a
//! running mean that is subtracted. By the time its forward runs once more, micro-batches
//! behind it have moved the buffer on. So a segment that recomputes keeps what was in its
//! buffers, and its second run finds that; then they are as they were again. Only buffers
//! that move are kept: those that a first run was seen to change, and those that were
//! written to since the step began.

use std::collections::HashSet;
use std::ops::Range;

use tch::Tensor;

use super::TorchStage;
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, SavedTensorPool};

/// What a forward found in buffers that move, by the buffers' numbers on the stage. The
/// others held what they did when the step began.
pub(super) type Before = Vec<(usize, Tensor)>;

/// What is known of how a stage's buffers move.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// How often each had been written to when the step began.
    began: Vec<i64>,
    /// Those that a first run changed.
    seen: HashSet<usize>,
}

/// Where the buffers of each layer are among those of all.
pub(super) fn places(counts: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let place = |end: &mut usize, count| {
        let start = *end;
        *end += count;
        Some(start..*end)
    };
    counts.scan(0, place).collect()
}

impl TorchStage {
    /// Keeps what the buffers hold when a training step begins.
    pub(super) fn save_all_buffers(&mut self) -> Result<(), TorchError> {
        let all = 0..self.buffers.len();
        self.moves.began = self.buffer_changes(all)?;
        self.saved_buffers = self.buffers.iter().map(|(_, b)| b.copy()).collect();
        Ok(())
    }

    /// The buffers of some layers, past autograd's eyes, and copies of what they hold.
    pub(super) fn save_buffers(&self, layers: &Range<usize>) -> Vec<(Tensor, Tensor)> {
        let buffers = self.buffers[self.numbers(layers)].iter();
        buffers
            .map(|(_, buffer)| (buffer.data(), buffer.copy()))
            .collect()
    }

    /// Notes which buffers a first run of some layers has changed. Not all writes are
    /// counted: those of libtorch's own batch norm, say, or through `Tensor::data`.
    pub(super) fn note_moves(
        &mut self,
        layers: &Range<usize>,
        changes: &[i64],
        saved: &[(Tensor, Tensor)],
    ) -> Result<(), TorchError> {
        let numbers = self.numbers(layers);
        let now = self.buffer_changes(numbers.clone())?;
        for (place, number) in numbers.enumerate() {
            let (buffer, before) = &saved[place];
            // What cannot be compared is taken for changed.
            let same = || buffer.f_equal(before).unwrap_or(false);
            if now[place] != changes[place] || !same() {
                self.moves.seen.insert(number);
            }
        }
        Ok(())
    }

    /// How often the buffers of some layers have been written to.
    pub(super) fn changes_of(&self, layers: &Range<usize>) -> Result<Vec<i64>, TorchError> {
        self.buffer_changes(self.numbers(layers))
    }

    /// What the layers are about to find in those of their buffers that move.
    pub(super) fn before(&self, layers: &Range<usize>) -> Result<Before, TorchError> {
        let mut before = Before::new();
        for number in self.numbers(layers) {
            if self.has_moved(number)? {
                before.push((number, self.buffers[number].1.copy()));
            }
        }
        Ok(before)
    }

    /// Runs the layers once more with what their first run found in their buffers, which
    /// afterwards hold what they do now.
    pub(super) fn as_before<T>(
        &mut self,
        layers: &Range<usize>,
        before: &Before,
        body: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let now = self.save_buffers(layers);
        let displaced = self.displaced(layers, before)?;
        let done = if displaced.is_empty() {
            body(self)
        } else {
            restore(&displaced)?;
            saving_copies(self, &displaced, body)
        };
        restore(&now)?;
        done
    }

    /// The layers' buffers that move, past autograd's eyes, and what was in them.
    fn displaced(
        &self,
        layers: &Range<usize>,
        before: &Before,
    ) -> Result<Vec<(Tensor, Tensor)>, TorchError> {
        let mut displaced = Vec::new();
        for number in self.numbers(layers) {
            let kept = before.iter().find(|(kept, _)| *kept == number);
            let value = match kept {
                Some((_, value)) => value,
                None if self.has_moved(number)? => &self.saved_buffers[number],
                None => continue,
            };
            displaced.push((self.buffers[number].1.data(), value.shallow_clone()));
        }
        Ok(displaced)
    }

    /// Whether the buffer may hold something else than when the step began.
    fn has_moved(&self, number: usize) -> Result<bool, TorchError> {
        if self.moves.seen.contains(&number) {
            return Ok(true);
        }
        let began = self.moves.began.get(number);
        Ok(began != Some(&ffi::changes(&self.buffers[number].1)?))
    }

    fn buffer_changes(&self, numbers: Range<usize>) -> Result<Vec<i64>, TorchError> {
        let buffers = self.buffers[numbers].iter();
        buffers.map(|(_, buffer)| ffi::changes(buffer)).collect()
    }

    /// The numbers of some layers' buffers.
    fn numbers(&self, layers: &Range<usize>) -> Range<usize> {
        let places = &self.layer_buffers[layers.clone()];
        let start = places.first().map_or(0, |first| first.start);
        start..places.last().map_or(start, |last| last.end)
    }
}

/// Runs `body`; where autograd saves one of these buffers, it has what the buffer held,
/// and not the buffer, which will hold something else when the backward comes.
fn saving_copies<T>(
    stage: &mut TorchStage,
    buffers: &[(Tensor, Tensor)],
    body: impl FnOnce(&mut TorchStage) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let saved_pool = SavedTensorPool::new(stage.device, 0)?;
    let scope = saved_pool.enter();
    let done = body(stage)?;
    drop(scope);
    for number in 0..saved_pool.len() {
        let Some((memory, _)) = saved_pool.on_device(number)? else {
            continue;
        };
        if buffers.iter().any(|(buffer, _)| holds(&memory, buffer)) {
            saved_pool.set_on_device(number, &ffi::copy(&memory)?)?;
        }
    }
    Ok(done)
}

/// Whether a tensor begins in these bytes.
fn holds(memory: &Tensor, tensor: &Tensor) -> bool {
    let begin = memory.data_ptr() as usize;
    (begin..begin + memory.numel()).contains(&(tensor.data_ptr() as usize))
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
