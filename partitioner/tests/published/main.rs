//! Published measurements, and what is computed for them from published layer times and sizes: the
//! table of the book's page "Published measurements". Where a value comes from, each file says.
#![allow(clippy::unwrap_used)]

mod controllable;
mod gpipe;
mod layer_times;
mod megatron;
mod page;
mod table;
mod unequal;
mod zero_bubble;
