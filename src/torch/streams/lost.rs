//! Devices that answer every call with an error: after a kernel error, CUDA is unusable until the
//! process ends.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write as _;

use parking_lot::Mutex;

use super::cuda;
use super::device_streams::DeviceStreams;
use super::ids::Stream;
use crate::device_lost::{DeviceLost, is_of_cuda};
use crate::error::TorchError;
use crate::ffi;

/// The loss of one of libtorch's devices.
static LOST: Mutex<Option<DeviceLost>> = Mutex::new(None);

/// The numbers of libtorch's devices that pipelines of the process have used.
static USED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The loss of a device, if there was one.
pub(crate) fn loss() -> Option<DeviceLost> {
    LOST.lock().clone()
}

/// # Errors
/// A device is lost.
pub(crate) fn check() -> Result<(), DeviceLost> {
    loss().map_or(Ok(()), Err)
}

/// Adds to an error of CUDA that the device is lost, if it is. The loss is also printed at once,
/// since freeing device memory may end the process from now on.
pub(crate) fn explain(stream: Stream, at: impl Display, error: anyhow::Error) -> anyhow::Error {
    if !is_of_cuda(&error) {
        return error;
    }
    let gone = gone(stream);
    let Some((_, answer)) = gone.first() else {
        return error;
    };
    let (lost, new) = {
        let mut lost = LOST.lock();
        let new = lost.is_none();
        let first = || DeviceLost {
            first: told(&format!("{at}: {error:#}"), &answer.to_string()),
        };
        (lost.get_or_insert_with(first).clone(), new)
    };
    if new {
        // If printing fails, the error still contains it.
        let _ = writeln!(std::io::stderr(), "{lost}");
    }
    for (device, _) in gone {
        // If this fails, the process may end when memory is freed. An already abandoned device
        // refuses.
        let _ = ffi::abandon_cuda(device);
    }
    error.context(lost)
}

/// Does the same for an error of the host's wait for a step's numbers.
pub(crate) fn explain_reading(stream: Stream, error: TorchError) -> TorchError {
    let explained = explain(stream, "numbers of a step that were read", error.into());
    TorchError::new(explained.to_string())
}

/// Adds devices of a pipeline to those among which a lost one is looked for.
pub(crate) fn look_among(devices: impl IntoIterator<Item = usize>) {
    USED.lock().extend(devices);
}

/// The devices that are lost, and what they answer: the stream's, and others. A stage hears of the
/// loss of another one's device as well, by an event or a copy between them.
fn gone(stream: Stream) -> Vec<(usize, TorchError)> {
    let others = USED.lock().clone().into_iter();
    let others = others.filter(|other| *other != stream.device);
    let current = |device| cuda::current(device).ok();
    let streams = std::iter::once(stream).chain(others.filter_map(current));
    let gone = streams.filter_map(|stream| Some((stream.device, answers(stream).err()?)));
    gone.collect()
}

/// Checks that the device finishes its work: a lost one answers with an error.
fn answers(stream: Stream) -> Result<(), TorchError> {
    cuda::finish(&cuda::point(stream)?)
}

/// Combines the first error with the device's own answer: cuBLAS, for example, only reports that a
/// product failed.
fn told(seen: &str, answer: &str) -> String {
    // The rest is libtorch's advice.
    let answer = answer.lines().next().unwrap_or_default();
    if seen.contains(answer) {
        seen.to_owned()
    } else {
        format!("{seen}; the device itself answers: {answer}")
    }
}

impl DeviceStreams {
    /// See [`explain`].
    pub(crate) fn explain_loss(&self, at: impl Display, error: anyhow::Error) -> anyhow::Error {
        match &self.accelerator {
            Some(accelerator) => explain(accelerator.main, at, error),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An invalid class label was once reported as a failure of the next product.
    #[test]
    fn the_answer_of_the_device_itself_is_told_once() {
        let product = "stage 1, backward: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED";
        let answer = "CUDA error: device-side assert triggered\nFor debugging consider CUDA_LAUNCH_BLOCKING=1";
        assert_eq!(
            told(product, answer),
            format!(
                "{product}; the device itself answers: CUDA error: device-side assert triggered"
            )
        );
        let same = "stage 1: CUDA error: device-side assert triggered";
        assert_eq!(told(same, answer), same);
    }
}
