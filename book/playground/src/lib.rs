//! The partitioner behind the book's playground: answers a [`Question`] in JSON with JSON.
//!
//! The page loads it as WebAssembly (`make playground`). Its numbers are those of `gpipe-rs simulate` for the
//! [profile](Question::profile) of a model of equal layers.

mod answer;
mod exports;
mod question;
mod simulated;

pub use answer::answer;
pub use question::Question;
