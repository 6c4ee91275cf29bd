//! Errors of libtorch, without the C++ back-trace.

use thiserror::Error;

use gpipe_engine::panics::without_backtrace;

/// An error that libtorch raised, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TorchError {
    message: String,
}

impl TorchError {
    /// An error with this message, less the C++ back-trace.
    pub fn new(message: impl AsRef<str>) -> Self {
        Self {
            message: without_backtrace(message.as_ref()).to_owned(),
        }
    }

    /// Returns the message, without back-trace.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        Self::new(error.to_string())
    }
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
    }
}
