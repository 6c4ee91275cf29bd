//! Worlds of real processes on this host, which are killed, stopped and fail; and the launcher that starts
//! such processes. No test waits forever: processes that run too long are killed and reported.
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
