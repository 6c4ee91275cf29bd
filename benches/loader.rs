//! Gain from a loader's workers and from prefetching. See `benches/README.md`.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpipe::data::{Dataset, Loader, Made};
use gpipe::tch::Tensor;

/// Batches per measurement, and items per batch.
const BATCHES: usize = 24;
const SIZE: usize = 32;
/// Rounds, each with one worker and with two. The minimum of each counts, since other load only adds time.
/// More rounds run while the ratio is too low.
const ROUNDS: std::ops::RangeInclusive<usize> = 9..=40;
/// Required speed-up of two workers on two cores.
const FASTER: f64 = 1.7;
/// Time per batch, time per step, and the highest share of it that may be spent waiting.
const SOURCE: Duration = Duration::from_millis(20);
const STEP: Duration = Duration::from_millis(30);
const WAITED: f64 = 0.02;
const STEPS: usize = 50;

/// About 150 microseconds of arithmetic, as for decoding a small image.
fn decode(item: usize) -> Vec<f32> {
    let mut number = item as f32;
    let mut next = || {
        number = (number * 1.618 + 0.577).sin();
        number
    };
    let mut row = vec![0.0; 64];
    for turn in 0..10_000 {
        row[turn % 64] += next();
    }
    row
}

/// Seconds for all batches after the first.
fn seconds(workers: usize) -> f64 {
    let items = Made::new((BATCHES + 1) * SIZE, |item| Ok(decode(item)));
    let batches = Dataset::new(items).batch(SIZE).workers(workers);
    let mut loader = batches.load().expect("the source has items");
    let take =
        |loader: &mut Loader<Tensor>| drop(loader.next().expect("a batch").expect("no error"));
    take(&mut loader);
    let start = Instant::now();
    (0..BATCHES).for_each(|_| take(&mut loader));
    start.elapsed().as_secs_f64()
}

fn workers() -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("items/s of a transformation that only computes, {cores} cores:");
    let (mut ratios, mut best) = (Vec::new(), [f64::INFINITY; 2]);
    while ratios.len() < *ROUNDS.start()
        || (ratios.len() < *ROUNDS.end() && best[0] / best[1] < FASTER)
    {
        let times = [seconds(1), seconds(2)];
        ratios.push(times[0] / times[1]);
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(time);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let rounds = ratios.len();
    let items = (BATCHES * SIZE) as f64;
    println!(
        "  1 worker {:.0}, 2 workers {:.0}: {:.2} times as many ({rounds} rounds, the median of \
         their own ratios {:.2})",
        items / best[0],
        items / best[1],
        best[0] / best[1],
        ratios[rounds / 2],
    );
    cores < 2 || best[0] / best[1] >= FASTER
}

/// A step that keeps a core busy throughout.
fn compute(time: Duration) {
    let start = Instant::now();
    let mut number = 0.5_f64;
    while start.elapsed() < time {
        number = std::hint::black_box((number * 1.618 + 0.577).sin());
    }
}

fn prefetch() -> bool {
    let source = Made::new(STEPS + 1, |item| {
        sleep(SOURCE);
        Ok(item as i64)
    });
    let batches = Dataset::new(source).batch(1).prefetch(2);
    let mut loader = batches.load().expect("the source has items");
    drop(loader.next());
    loader.waited();
    let start = Instant::now();
    let mut waited = Duration::ZERO;
    for _ in 0..STEPS {
        compute(STEP);
        drop(loader.next());
        waited += loader.waited();
    }
    let share = waited.as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "batches that take {SOURCE:?} to come behind steps of {STEP:?}: {:.3} % of the time waited",
        share * 100.0
    );
    share < WAITED
}

/// Measures the loader's overhead per batch if items cost nothing.
fn overhead() {
    let made = |workers: usize| {
        let items = Made::new(usize::MAX, |item| Ok(item as i64));
        let batches = Dataset::new(items).batch(SIZE).workers(workers);
        let mut loader = batches.load().expect("the source has items");
        let start = Instant::now();
        let count = 20_000;
        loader.by_ref().take(count).for_each(drop);
        start.elapsed().as_secs_f64() * 1e6 / count as f64
    };
    println!(
        "a batch of {SIZE} items that cost nothing: {:.1} us with 1 worker, {:.1} us with 2",
        made(1),
        made(2)
    );
}

fn main() -> ExitCode {
    overhead();
    let within = [workers(), prefetch()];
    if within.into_iter().all(|within| within) {
        return ExitCode::SUCCESS;
    }
    println!("the workers are below {FASTER} times, or more than {WAITED} of the time is waited");
    ExitCode::FAILURE
}
