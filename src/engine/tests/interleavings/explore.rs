//! Runs scenarios under the model checker and counts their interleavings.

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Walks per scheduler and case; `INTERLEAVINGS=20000 cargo test …` explores more.
fn walks() -> usize {
    std::env::var("INTERLEAVINGS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(400)
}

/// Runs `scenario` under `scheduler` and returns the number of interleavings.
fn explore(
    scheduler: impl Scheduler + 'static,
    scenario: impl Fn() + Send + Sync + 'static,
) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    // The only relaxed accesses are to a hint that carries no data.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(scenario)
}

/// Prints how many interleavings were explored here and in all tests so far, even where the output
/// of passing tests is captured.
fn say(name: &str, explored: usize) {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let all = ALL.fetch_add(explored, Ordering::SeqCst) + explored;
    let mut out = std::io::stdout().lock();
    // A closed standard output is no reason to fail.
    let _ = writeln!(
        out,
        "{name}: {explored} interleavings explored, {all} in all"
    );
}

/// Explores the first interleavings in depth-first order.
pub fn depth_first(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let explored = explore(DfsScheduler::new(Some(4 * walks()), false), scenario);
    say(&format!("{name}, depth first"), explored);
}

/// Explores by random walks and by priority-based walks.
pub fn sample(name: &str, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    let random = RandomScheduler::new_from_seed(7, walks());
    say(
        &format!("{name}, random"),
        explore(random, scenario.clone()),
    );
    let pct = PctScheduler::new_from_seed(7, 3, walks());
    say(&format!("{name}, PCT"), explore(pct, scenario));
}

/// Same as `sample`, for each of `faults`, which share the walks.
pub fn sample_each<F: Copy + Send + Sync + 'static>(
    name: &str,
    faults: &[F],
    scenario: impl Fn(F) + Clone + Send + Sync + 'static,
) {
    let share = (2 * walks()).div_ceil(faults.len());
    let (mut random, mut pct) = (0, 0);
    for (seed, &fault) in faults.iter().enumerate() {
        let seed = seed as u64;
        let here = scenario.clone();
        let scheduler = RandomScheduler::new_from_seed(seed, share);
        random += explore(scheduler, move || here(fault));
        let here = scenario.clone();
        let scheduler = PctScheduler::new_from_seed(seed, 3, share);
        pct += explore(scheduler, move || here(fault));
    }
    say(&format!("{name}, random"), random);
    say(&format!("{name}, PCT"), pct);
}
