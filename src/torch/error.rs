//! What libtorch says when it refuses, without the C++ back-trace.

use thiserror::Error;

/// An error that libtorch raised, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TorchError {
    message: String,
}

impl TorchError {
    pub(crate) fn new(message: impl AsRef<str>) -> Self {
        Self {
            message: without_backtrace(message.as_ref()).to_owned(),
        }
    }

    /// The message, without back-trace.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        Self::new(error.to_string())
    }
}

/// The part of a libtorch message that is meant for people.
///
/// libtorch appends `Exception raised from <function> at <file>` and one line a
/// stack frame; tch passes that on in errors and panics.
pub(crate) fn without_backtrace(message: &str) -> &str {
    let end = ["\nException raised from ", "\nframe #0: "]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    message[..end].trim_end()
}

/// What a panic said, for people: where tch unwrapped an error, libtorch's own
/// sentence instead of the error's debug form with its back-trace.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    let Some((_, debug)) = text.split_once("on an `Err` value: Torch(\"") else {
        return without_backtrace(text).to_owned();
    };
    let debug = debug.strip_suffix("\")").unwrap_or(debug);
    without_backtrace(&debug.replace("\\n", "\n").replace("\\\"", "\"")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_the_stack_frames_and_keeps_the_sentence() {
        let raw = "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n\
                   Exception raised from meta at /pytorch/aten/LinearAlgebra.cpp:1 (most recent call first):\n\
                   frame #0: c10::Error::Error()";
        assert_eq!(
            TorchError::new(raw).to_string(),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"
        );
        assert_eq!(without_backtrace("plain"), "plain");
        let enforced = "you tried to allocate 9 bytes\nframe #0: c10::ThrowEnforceNotMet";
        assert_eq!(without_backtrace(enforced), "you tried to allocate 9 bytes");
    }

    #[test]
    fn a_panic_of_tch_reads_like_libtorchs_own_error() {
        let raw = "shape \"a\" is wrong\nException raised from f at g (most recent call first):\nframe #0: h";
        let failed = || -> Result<(), _> { Err(tch::TchError::Torch(raw.to_owned())) };
        let payload = std::panic::catch_unwind(|| failed().unwrap()).unwrap_err();
        assert_eq!(panic_message(&*payload), "shape \"a\" is wrong");
        let payload = std::panic::catch_unwind(|| panic!("mine")).unwrap_err();
        assert_eq!(panic_message(&*payload), "mine");
    }
}
