//! Programs that went wrong once.
