//! Worlds of real processes on this host, which are killed, stopped and fail; and the launcher
//! that starts such processes. No test waits for ever: what runs too long is killed, and told.
#![allow(clippy::unwrap_used)]

mod commands;
mod failures;
mod job;
mod killed_trainings;
mod kills;
mod launch;
mod lazy;
mod name_server;
mod namespaces;
mod parts;
mod stopped_steps;
mod together;
mod training;
