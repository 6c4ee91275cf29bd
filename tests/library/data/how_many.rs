//! Automatic numbers of workers and prefetched batches.

use gpipe::data::{Batches, Dataset, HowMany, Made, Source};
use gpipe::tch::Tensor;
use serde_json::Value;

use super::{numbers, says};

/// Items that take unequal times, some of them bad.
fn batches(workers: HowMany, prefetch: HowMany) -> Batches<impl Source<Item = i64>, Tensor> {
    let items = Made::new(97, |number| {
        let work = (0..number % 7 * 1000).fold(0, usize::wrapping_add);
        std::hint::black_box(work);
        anyhow::ensure!(number != 13, "bad on purpose");
        Ok(number as i64)
    });
    let random = Dataset::new(items).shuffle(50, 7);
    let random = random.map_random(3, |item, random| Ok(item + 1000 * random.below(100) as i64));
    let batches = random.batch(8).epochs(6).skip_bad(1);
    batches.workers(workers).prefetch(prefetch).memory(1 << 20)
}

/// All batches, and the loader's state after each.
fn taken<S: Source>(batches: Batches<S, Tensor>) -> Vec<(Vec<i64>, Value)> {
    let mut loader = batches.load().unwrap();
    let mut all = Vec::new();
    while let Some(batch) = loader.next() {
        all.push((numbers(&batch.unwrap()), loader.state()));
    }
    all
}

#[test]
fn what_is_found_changes_no_batch_and_no_state() {
    use HowMany::{Auto, Fixed};
    let one = taken(batches(Fixed(1), Fixed(2)));
    assert_eq!(one.len(), 6 * 12);
    for (workers, prefetch) in [
        (Fixed(2), Fixed(2)),
        (Fixed(4), Auto),
        (Auto, Fixed(0)),
        (Auto, Auto),
    ] {
        let own = taken(batches(workers, prefetch));
        assert_eq!(own, one, "{workers} workers, {prefetch} ahead");
    }
    // An automatic loader resumes from a fixed one's state, and vice versa.
    for (place, workers) in [(5, Auto), (30, Fixed(4)), (50, Auto)] {
        let (_, state) = &one[place];
        let rest = taken(batches(workers, Auto).resume(state));
        assert_eq!(rest, one[place + 1..], "from {place}");
    }
}

/// The training waits for a sleeping loader: without tuning it would have one worker.
#[test]
fn workers_are_added_where_batches_are_waited_for() {
    let items = Made::new(usize::MAX >> 1, |number| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        Ok(number as i64)
    });
    let mut loader = Dataset::new(items)
        .batch(4)
        .workers(HowMany::Auto)
        .load()
        .unwrap();
    // The number of batches depends on the machine: usually a few windows of sixteen.
    let added = (0..2000).any(|_| {
        drop(loader.next().unwrap().unwrap());
        loader.measures().is_some_and(|own| own.workers > 1)
    });
    assert!(added);
}

#[test]
fn a_loader_without_an_end_to_its_queue_ends_when_it_is_dropped() {
    let made = || Dataset::new(Made::new(1000, |number| Ok(number as i64)));
    let auto = made()
        .batch(1)
        .workers(HowMany::Auto)
        .prefetch(HowMany::Auto);
    let mut loader = auto.endless().load().unwrap();
    for _ in 0..100 {
        drop(loader.next().unwrap().unwrap());
    }
    drop(loader);
}

#[test]
fn how_many_is_read_and_written() {
    for many in [HowMany::Auto, HowMany::Fixed(12)] {
        assert_eq!(many.to_string().parse(), Ok(many));
    }
    assert!("some".parse::<HowMany>().is_err());
    let none = Dataset::new(Made::new(3, |number| Ok(number as i64))).batch(1);
    says(&none.workers(0).load().unwrap_err(), &["0 workers"]);
}
