//! Published measurements, and values computed for them from published layer times and sizes: the
//! table of the book's page "Published measurements". Each file names its source.
#![allow(clippy::unwrap_used)]

mod controllable;
mod gpipe;
mod layer_times;
mod megatron;
mod page;
mod table;
mod unequal;
mod zero_bubble;
