//! Growth of times with sizes: the slope of a line through their logarithms.
#![allow(unreachable_pub)]

use std::time::{Duration, Instant};

#[path = "../../../benches/report_support/mod.rs"]
mod report_support;

pub use report_support::Report;

/// Tolerance of a slope above the stated power: logarithmic factors, caches too small for a larger
/// size, and noise.
const SLACK: f64 = 0.25;

/// Returns the shortest time of several runs.
fn shortest<R>(mut run: impl FnMut() -> R) -> Duration {
    const LEAST: Duration = Duration::from_millis(150);
    let (begun, mut best) = (Instant::now(), Duration::MAX);
    for runs in 0.. {
        let start = Instant::now();
        std::hint::black_box(run());
        best = best.min(start.elapsed());
        if runs >= 2 && begun.elapsed() > LEAST {
            break;
        }
    }
    best
}

/// Returns the slope of the least-squares line through (log size, log time).
fn slope(points: &[(f64, f64)]) -> f64 {
    let logs = || points.iter().map(|(size, time)| (size.ln(), time.ln()));
    let count = points.len() as f64;
    let (x, y) = logs().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / count, b + y / count));
    let (up, across) = logs().fold((0.0, 0.0), |(up, across), (a, b)| {
        (up + (a - x) * (b - y), across + (a - x) * (a - x))
    });
    up / across
}

/// Times `run` for every size, prints each and the slope, and claims that the slope is at most
/// `power`, the stated complexity in the size.
pub fn grows<R>(
    report: &mut Report,
    what: &str,
    power: f64,
    sizes: &[usize],
    mut run: impl FnMut(usize) -> R,
) {
    let time = |&size: &usize| (size as f64, shortest(|| run(size)).as_secs_f64());
    let points: Vec<(f64, f64)> = sizes.iter().map(time).collect();
    let slope = slope(&points);
    let times: Vec<String> = points
        .iter()
        .map(|(size, time)| format!("{size} {:.3} ms", time * 1e3))
        .collect();
    println!(
        "{what}: slope {slope:.2}, stated {power}   ({})",
        times.join(", ")
    );
    report.at_most(
        format!("slope of {what}, stated {power}"),
        slope,
        power + SLACK,
        "",
    );
    report
        .row(serde_json::json!({"what": what, "slope": slope, "stated": power, "points": points}));
}
