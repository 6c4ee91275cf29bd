//! What several verbs read: values of flags, and files.

pub(super) use crate::decide::input::*;

/// Of random numbers.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    let rule = |_| format!("`{text}` is not a whole number from 0 to {}", u64::MAX);
    text.trim().parse().map_err(rule)
}
