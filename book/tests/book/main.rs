//! What the book says is held against what is there: its links and anchors, the files
//! that it names, its pictures, the figures in its tables, the errors that it quotes.
#![allow(clippy::unwrap_used)]

mod figures;
mod links;
mod pages;
mod paths;
mod pictures;
