//! Order, bad items, panics, slow sources and ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use gpipe::data::{DataError, Dataset, Made, Source};
use gpipe::tch::Tensor;
use parking_lot::Mutex;

use super::{all, numbers, says};

fn count(len: usize) -> Dataset<Made<impl Fn(usize) -> anyhow::Result<i64>>> {
    Dataset::new(Made::new(len, |number| Ok(number as i64)))
}

/// Work whose length differs from item to item, so that workers overtake each other.
#[allow(clippy::unnecessary_wraps, reason = "as a loader's map is")]
fn uneven(number: i64) -> anyhow::Result<i64> {
    let turns = if number % 7 == 0 { 20_000 } else { 10 };
    let sum = (0..turns).fold(number, |sum, turn| sum.wrapping_mul(31) ^ turn);
    std::hint::black_box(sum);
    Ok(number)
}

#[test]
fn the_order_is_the_same_for_any_number_of_workers() {
    let batches = |workers, prefetch| {
        let items = count(101).map(uneven).shuffle(30, 3);
        let random = items.map_random(5, |number, random| {
            Ok(number * 1000 + random.below(1000) as i64)
        });
        all(random
            .batch(8)
            .epochs(2)
            .workers(workers)
            .prefetch(prefetch))
        .unwrap()
    };
    let one = batches(1, 2);
    assert_eq!(one.len(), 26, "13 batches an epoch, the last one of 5");
    assert_ne!(one[..13], one[13..]);
    for workers in [2, 4, 8] {
        assert_eq!(batches(workers, 2), one, "{workers} workers");
    }
    assert_eq!(batches(3, 0), one, "nothing ahead");
}

#[test]
fn every_item_comes_once_in_an_epoch() {
    for (size, drop_last) in [(7, false), (7, true), (100, false), (1, true)] {
        let mut batches = count(23).shuffle(usize::MAX, 1).batch(size).workers(2);
        if drop_last {
            batches = batches.drop_last();
        }
        let batches = all(batches).unwrap();
        let mut items = batches.concat();
        let whole = if drop_last { 23 / size * size } else { 23 };
        assert_eq!(items.len(), whole);
        items.sort_unstable();
        items.dedup();
        assert_eq!(items.len(), whole, "no item twice");
    }
}

fn some_bad(bad: &'static [usize]) -> Dataset<Made<impl Fn(usize) -> anyhow::Result<i64>>> {
    Dataset::new(Made::new(20, move |number| {
        anyhow::ensure!(!bad.contains(&number), "number {number} is sour");
        Ok(number as i64)
    }))
}

#[test]
fn a_bad_item_ends_the_loader_with_its_place() {
    let mut loader = some_bad(&[9]).batch(4).workers(3).load().unwrap();
    assert_eq!(numbers(&loader.next().unwrap().unwrap()), [0, 1, 2, 3]);
    assert_eq!(numbers(&loader.next().unwrap().unwrap()), [4, 5, 6, 7]);
    let state = loader.state();
    says(
        &loader.next().unwrap().unwrap_err(),
        &["item 9", "number 9 is sour"],
    );
    assert!(loader.next().is_none());
    assert_eq!(
        loader.state(),
        state,
        "what was not consumed does not count"
    );
}

#[test]
fn bad_items_are_skipped_and_told_up_to_a_bound() {
    let batches = || some_bad(&[2, 3, 19]).batch(4).workers(2).epochs(2);
    let mut loader = batches().skip_bad(3).load().unwrap();
    let made: Vec<_> = loader
        .by_ref()
        .map(|batch| numbers(&batch.unwrap()))
        .collect();
    assert_eq!(made[0], [0, 1, 4, 5], "a batch is filled up");
    assert_eq!(made[4], [18], "and the last one is not");
    assert_eq!(made.len(), 10);
    let told = loader.skipped().iter().map(ToString::to_string);
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 6);
    assert!(told[0].contains("item 2: number 2 is sour"), "{told:?}");

    // One that is bad after the last full batch belongs to none.
    let mut loader = some_bad(&[16, 19]).batch(3).skip_bad(2).load().unwrap();
    assert_eq!(loader.by_ref().count(), 6);
    assert_eq!(loader.skipped().len(), 2);

    let error = all(batches().skip_bad(2)).unwrap_err();
    says(
        &error,
        &["3 bad items in epoch 0", "2 may be skipped", "item 19"],
    );
    assert_eq!(error.place().unwrap().to_string(), "item 19");
}

#[test]
fn an_epoch_without_a_batch_is_an_error_not_an_endless_search() {
    let none = Made::new(6, |_| -> anyhow::Result<i64> { anyhow::bail!("bad") });
    let batches = Dataset::new(none).batch(2).skip_bad(6).endless();
    says(
        &all(batches).unwrap_err(),
        &["epoch 0 gives no batch", "6 of its items are bad"],
    );
    let few = some_bad(&[0, 1, 2])
        .batch(18)
        .drop_last()
        .skip_bad(3)
        .endless();
    says(&all(few).unwrap_err(), &["no batch", "3 of"]);
    let error = all(count(5).batch(6).drop_last().endless()).unwrap_err();
    says(&error, &["no whole batch", "6 items", "has 5"]);
}

#[test]
fn a_panic_of_a_transformation_is_an_error_with_the_place() {
    for workers in [1, 4] {
        let items = count(10).map(|number| {
            assert!(number != 5, "five is too many");
            Ok(number)
        });
        let batches = items.batch(2).workers(workers);
        let error = all(batches).unwrap_err();
        says(&error, &["item 5", "panicked", "five is too many"]);
    }
    let stack = count(10).batch_with(3, |_| -> anyhow::Result<Tensor> { panic!("no batch") });
    says(
        &all(stack).unwrap_err(),
        &["begins with item 0", "no batch"],
    );
}

#[test]
fn items_of_different_sizes_name_the_batch() {
    let rows = Made::new(8, |number| Ok(vec![0_i64; if number == 6 { 2 } else { 3 }]));
    let error = all(Dataset::new(rows).batch(4)).unwrap_err();
    says(&error, &["begins with item 4", "item 2 has 2 numbers"]);
}

#[test]
fn dropping_a_loader_early_ends_all_its_threads() {
    let alive = Arc::new(());
    for (taken, prefetch) in [(0, 2), (1, 0), (3, 4)] {
        let inner = Arc::clone(&alive);
        let items = Made::new(usize::MAX, move |number| {
            let _ = &inner;
            Ok(number as i64)
        });
        let batches = Dataset::new(items).batch(16).workers(4).prefetch(prefetch);
        let mut loader = batches.load().unwrap();
        for _ in 0..taken {
            assert!(loader.next().unwrap().is_ok());
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&alive), 1, "the threads' source is gone");
    }
}

/// How many items are made is bounded by what is ahead, not by what there is.
#[test]
fn a_slow_consumer_stops_the_workers() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&made);
    let items = Made::new(usize::MAX, move |number| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(number as i64)
    });
    let batches = Dataset::new(items).batch(10).workers(2).prefetch(1);
    let mut loader = batches.load().unwrap();
    assert!(loader.next().unwrap().is_ok());
    drop(loader);
    // Taken, in the queue, waiting for the queue, and the tasks that are out.
    let most = 10 * 3 + 10 + 2 * 10;
    assert!(made.load(Ordering::Relaxed) <= most, "{made:?}");
}

#[test]
fn a_source_that_hangs_is_named_and_goes_on_later() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let items = Made::new(6, move |number| {
        if number == 4 {
            released.lock().recv().ok();
        }
        Ok(number as i64)
    });
    let batches = Dataset::new(items)
        .batch(2)
        .patience(Duration::from_millis(50));
    let mut loader = batches.load().unwrap();
    assert_eq!(numbers(&loader.next().unwrap().unwrap()), [0, 1]);
    assert_eq!(numbers(&loader.next().unwrap().unwrap()), [2, 3]);
    let slow = loader.next().unwrap().unwrap_err();
    assert!(matches!(slow, DataError::Slow { .. }), "{slow}");
    says(&slow, &["no batch for", "still waiting for item 4"]);
    release.send(()).unwrap();
    let last = loader.find_map(Result::ok).unwrap();
    assert_eq!(numbers(&last), [4, 5]);
    assert!(loader.next().is_none());
}

#[test]
fn waiting_is_counted_until_it_is_asked_for() {
    let mut loader = count(100).batch(5).load().unwrap();
    assert_eq!(loader.waited(), Duration::ZERO);
    loader
        .by_ref()
        .take(5)
        .for_each(|batch| drop(batch.unwrap()));
    assert!(loader.waited() > Duration::ZERO);
    assert_eq!(loader.waited(), Duration::ZERO);
    assert!((0.0..=1.0).contains(&loader.wait_share()));
}

#[test]
fn what_cannot_be_is_refused_before_a_thread_starts() {
    let error = |batches: gpipe::data::Batches<_, Tensor>| all(batches).unwrap_err();
    says(&error(count(3).batch(0)), &["at least 1"]);
    says(&error(count(3).batch(1).workers(0)), &["0 workers"]);
    says(&error(count(0).batch(1)), &["nothing to load"]);
    let ranges = count(3).range(2..4).unwrap_err();
    says(&ranges, &["no items 2 to 4", "3 items"]);
    says(
        &count(3).zip(count(4)).unwrap_err(),
        &["3 items and 4 items"],
    );
    assert!(ranges.is_wrong_use());
    let far = gpipe::tch::Device::Cuda(3);
    says(&error(count(3).batch(1).to(far)), &["cuda:3"]);
}

#[test]
fn zips_and_ranges_keep_items_together() {
    let pairs = count(10)
        .zip(count(10).map(|number| Ok(number * 10)))
        .unwrap();
    let pairs = pairs.range(5..9).unwrap().shuffle(usize::MAX, 2);
    assert_eq!(pairs.len(), 4);
    let (mut seen, loader) = (Vec::new(), pairs.batch(3).load().unwrap());
    for batch in loader {
        let (left, right) = batch.unwrap();
        assert_eq!(&left * 10, right);
        seen.extend(numbers(&left));
    }
    seen.sort_unstable();
    assert_eq!(seen, [5, 6, 7, 8]);
}
