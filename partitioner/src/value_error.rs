//! Invalid values: a number out of range, or a text of the wrong form.

/// Why a number or a text is not a value of the type asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// A time that is negative, NaN or infinite.
    #[error("{value} is not a time: it must be finite and not negative")]
    NotATime {
        /// The value that was given, in microseconds.
        value: f64,
    },
    /// A text of the wrong form.
    #[error("`{text}` is not {expected}")]
    Parse {
        /// The text that was given.
        text: String,
        /// The accepted forms, with examples.
        expected: &'static str,
    },
}
