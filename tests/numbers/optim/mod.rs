//! Optimizers and learning rates, against formulas written out here.

mod schedules;
mod updates;
