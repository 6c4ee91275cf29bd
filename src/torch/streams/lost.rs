//! Devices that answer every call with an error: after a kernel error, CUDA is unusable until the
//! process ends.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write as _;

use parking_lot::Mutex;

use super::backend::Backend;
use super::device_streams::DeviceStreams;
use super::ids::Stream;
use crate::device_lost::{DeviceLost, is_of_cuda};
use crate::error::TorchError;
use crate::ffi;

/// The loss of one of libtorch's devices.
static CUDA: Mutex<Option<DeviceLost>> = Mutex::new(None);

/// The numbers of libtorch's devices that pipelines of the process have used.
static USED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

impl Backend {
    fn remembered<T>(&self, with: impl FnOnce(&mut Option<DeviceLost>) -> T) -> T {
        match self {
            Self::Cuda => with(&mut CUDA.lock()),
            Self::Recorder(recorder) => recorder.lost(with),
        }
    }

    /// The loss of a device, if there was one.
    pub(crate) fn lost(&self) -> Option<DeviceLost> {
        self.remembered(|lost| lost.clone())
    }

    /// # Errors
    /// A device is lost.
    pub(crate) fn is_there(&self) -> Result<(), DeviceLost> {
        self.lost().map_or(Ok(()), Err)
    }

    /// Adds to an error of CUDA that the device is lost, if it is. The loss is also printed at
    /// once, since freeing device memory may end the process from now on.
    pub(crate) fn explain_loss(
        &self,
        stream: Stream,
        at: impl Display,
        error: anyhow::Error,
    ) -> anyhow::Error {
        if !is_of_cuda(&error) {
            return error;
        }
        let gone = self.gone(stream);
        let Some((_, answer)) = gone.first() else {
            return error;
        };
        let (lost, new) = self.remembered(|lost| {
            let new = lost.is_none();
            let first = || DeviceLost {
                first: told(&format!("{at}: {error:#}"), &answer.to_string()),
            };
            (lost.get_or_insert_with(first).clone(), new)
        });
        if new {
            // If printing fails, the error still contains it.
            let _ = writeln!(std::io::stderr(), "{lost}");
        }
        if let Self::Cuda = self {
            for (device, _) in gone {
                // If this fails, the process may end when memory is freed. An already abandoned
                // device refuses.
                let _ = ffi::abandon_cuda(device);
            }
        }
        error.context(lost)
    }

    /// Does the same for an error of the host's wait for a step's numbers.
    pub(crate) fn lost_in_reading(&self, stream: Stream, error: TorchError) -> TorchError {
        let explained = self.explain_loss(stream, "numbers of a step that were read", error.into());
        TorchError::new(explained.to_string())
    }

    /// The devices of a pipeline, among which a lost one is looked for.
    pub(crate) fn uses(&self, devices: impl IntoIterator<Item = usize>) {
        if let Self::Cuda = self {
            USED.lock().extend(devices);
        }
    }

    /// The devices that are lost, and what they answer: the stream's, and others. A stage hears of the
    /// loss of another one's device as well, by an event or a copy between them.
    fn gone(&self, stream: Stream) -> Vec<(usize, TorchError)> {
        let others = match self {
            Self::Cuda => USED.lock().clone(),
            Self::Recorder(_) => BTreeSet::new(),
        };
        let others = others.into_iter().filter(|other| *other != stream.device);
        let current = |device| self.current(device).ok();
        let streams = std::iter::once(stream).chain(others.filter_map(current));
        let gone = streams.filter_map(|stream| Some((stream.device, self.answers(stream).err()?)));
        gone.collect()
    }

    /// Checks that the device finishes its work: a lost one answers with an error.
    fn answers(&self, stream: Stream) -> Result<(), TorchError> {
        self.finish(&self.point(stream)?)
    }
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
    /// Returns whether its device is lost: then page-locked memory must not be freed.
    pub(crate) fn is_lost(&self) -> bool {
        self.backend
            .as_ref()
            .is_some_and(|backend| backend.lost().is_some())
    }

    /// See [`Backend::explain_loss`].
    pub(crate) fn explain_loss(&self, at: impl Display, error: anyhow::Error) -> anyhow::Error {
        match (&self.backend, &self.accelerator) {
            (Some(backend), Some(accelerator)) => backend.explain_loss(accelerator.main, at, error),
            _ => error,
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
