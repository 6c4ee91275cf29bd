//! Checks the book against the code: links and anchors, named files, pictures, figures in tables, quoted
//! errors, command lines. Generated pages are compared with the generator's output; `make pages` rewrites
//! them.
#![allow(clippy::unwrap_used)]

mod commands;
mod configuration;
mod figures;
mod links;
mod made;
mod pages;
mod paths;
mod pictures;
mod reference;
