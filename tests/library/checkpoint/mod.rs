//! Checkpoints: training resumes from the saved state, whatever happens in between.

mod corrupted;
mod folders;
mod forged;
mod full_disk;
mod killed;
mod resumed;
mod run;
mod wrong_model;
