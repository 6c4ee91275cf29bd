//! Tests of schedules, plans and pages through the public interface.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

mod check_mutations;
mod cluster;
mod explain;
mod fewest_samples;
mod limits;
mod nodes;
mod page_support;
mod plan_choices;
mod plan_traffic;
mod plan_ways;
mod profile_page;
mod renderings;
mod schedule_auto;
mod schedule_csv;
mod schedule_memory;
mod schedule_optimum;
mod schedule_pytorch;
mod schedule_recompute;
mod schedule_table;
mod simulate_oracle;
mod solve_under;
mod uneven;
