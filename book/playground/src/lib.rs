//! The partitioner behind the book's playground: a [`Question`] as JSON, answered as JSON.
//!
//! The page has it as WebAssembly (`make playground`), and its numbers are those of
//! `gpipe-rs simulate` for the [profile](Question::profile) of a model of equal layers.

mod answer;
mod exports;
mod question;
mod simulated;

pub use answer::answer;
pub use question::Question;
