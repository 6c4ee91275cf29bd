//! Calls without which nothing that a test can see goes wrong, and why.

/// What is called, a part of the file's path and of the line's text, and why.
pub(super) const EXPLAINED: [(&str, &str, &str, &str); 0] = [];
