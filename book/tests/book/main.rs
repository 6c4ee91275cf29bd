//! What the book says is held against what is there: its links and anchors, the files
//! that it names, its pictures, the figures in its tables, the errors that it quotes, its
//! command lines. Pages that are made from code are compared with what the code makes;
//! `make pages` writes them anew.
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
