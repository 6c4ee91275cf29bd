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

/// Work of unequal length, so that workers overtake each other.
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

    // A bad item after the last full batch belongs to no batch.
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

/// The number of items made is bounded by the prefetching, not by the source.
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
    // Taken, in the queue, waiting for the queue, and tasks in progress.
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

/// Batches as one thread would make them, item by item.
fn item_by_item<S: Source>(items: &S, size: usize, epochs: u64) -> Vec<Vec<S::Item>> {
    let epoch = |epoch: u64| {
        let all = (0..items.len()).map(move |index| items.get(epoch, index).unwrap());
        let mut all = all.collect::<Vec<_>>().into_iter();
        let batches = items.len().div_ceil(size);
        (0..batches).map(move |_| all.by_ref().take(size).collect::<Vec<_>>())
    };
    (0..epochs).flat_map(epoch).collect()
}

/// Whether a source gathers whole batches, shows its items in order, or returns each separately.
#[test]
fn batches_are_what_their_items_stack_to_however_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let float = (gpipe::tch::Kind::Float, gpipe::tch::Device::Cpu);
    let x = Tensor::arange(37 * 6, float).reshape([37, 2, 3]);
    Tensor::write_safetensors(&[("x", &x)], &path).unwrap();
    let idx = folder.path().join("idx");
    let bytes = [&[0, 0, 8, 2, 0, 0, 0, 37, 0, 0, 0, 5][..], &[3; 37 * 5]].concat();
    std::fs::write(&idx, bytes).unwrap();
    let tokens = folder.path().join("a.u16.bin");
    std::fs::write(
        &tokens,
        (0..800_u32)
            .flat_map(|own| [own as u8, 0])
            .collect::<Vec<_>>(),
    )
    .unwrap();
    let rows =
        gpipe::ndarray::Array2::from_shape_fn((37, 4), |(row, column)| (row * 4 + column) as f64);

    let array = || Dataset::new(gpipe::data::Array::open(&path, "x").unwrap());
    let rows = || Dataset::new(gpipe::data::Rows::new(rows.clone()).unwrap());
    let tensors = |items: Vec<Tensor>| Tensor::stack(&items, 0);
    let check = |own: Vec<Tensor>, wanted: Vec<Tensor>| {
        assert_eq!(own.len(), wanted.len());
        for (own, wanted) in own.iter().zip(&wanted) {
            assert_eq!((own.kind(), own), (wanted.kind(), wanted));
        }
    };
    for workers in [1, 2, 4] {
        // Shuffled pairs of arrays, restricted to a range.
        let pairs = || {
            let parts = array().zip(rows()).unwrap().range(3..36).unwrap();
            parts.shuffle(10, 7)
        };
        let made = pairs().batch(8).workers(workers).epochs(2).load().unwrap();
        let made: Vec<_> = made.map(Result::unwrap).collect();
        let wanted = item_by_item(&pairs(), 8, 2);
        let (x, y): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .map(|own| own.into_iter().unzip())
            .unzip();
        let (own_x, own_y): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        check(own_x, x.into_iter().map(tensors).collect());
        check(own_y, y.into_iter().map(tensors).collect());

        let images = || Dataset::new(gpipe::data::Idx::open(&idx).unwrap()).shuffle(usize::MAX, 1);
        let made = images().batch(5).workers(workers).load().unwrap();
        let wanted = item_by_item(&images(), 5, 1).into_iter().map(tensors);
        check(made.map(Result::unwrap).collect(), wanted.collect());

        for in_memory in [false, true] {
            let tokens = if in_memory {
                gpipe::data::Tokens::new((0..800).map(|own| own % 256).collect())
            } else {
                gpipe::data::Tokens::open(&tokens).unwrap()
            };
            let windows = || tokens.windows(9).unwrap().shuffle(usize::MAX, 3);
            let made = windows().batch(6).workers(workers).load().unwrap();
            for (batch, wanted) in made.zip(item_by_item(&windows(), 6, 1)) {
                let (x, y) = batch.unwrap();
                let (a, b): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
                assert_eq!((numbers(&x), numbers(&y)), (a.concat(), b.concat()));
            }
        }
    }
}

/// Memory is reused, but never that of a batch of which a part is still held.
#[test]
fn a_batch_that_is_held_is_never_written_again() {
    let items = Made::new(4000, |number| Ok(vec![number as i64; 1000]));
    let loader = Dataset::new(items)
        .batch(10)
        .workers(3)
        .epochs(2)
        .load()
        .unwrap();
    let (mut held, mut places) = (Vec::new(), std::collections::HashSet::new());
    for (number, batch) in loader.enumerate() {
        let batch = batch.unwrap();
        places.insert(batch.data_ptr() as usize);
        let first = (number as i64 % 400) * 10;
        if number % 7 == 0 {
            // A part, and a view of a part, keep the whole batch.
            held.push((first + 3, batch.get(3).slice(0, 5, 20, 3)));
        }
        assert_eq!(batch.get(9).int64_value(&[999]), first + 9);
    }
    for (wanted, row) in &held {
        assert!(
            numbers(row).iter().all(|number| number == wanted),
            "{wanted}"
        );
    }
    let most = held.len() + 60;
    assert!(places.len() < most, "{} places of {most}", places.len());
}

/// A batch function runs where batches are made, and its errors name the batch.
#[test]
fn batches_go_through_functions_too() {
    let halves = |workers| {
        let batches = count(10).batch(4).workers(workers);
        let batches = batches.map(|batch| Ok(batch.f_mul_scalar(2)?));
        all(batches.map(|batch| Ok(batch + 1))).unwrap()
    };
    let wanted = vec![vec![1, 3, 5, 7], vec![9, 11, 13, 15], vec![17, 19]];
    assert_eq!(halves(1), wanted);
    assert_eq!(halves(3), wanted);
    let fails = |batch: Tensor| {
        anyhow::ensure!(batch.int64_value(&[0]) < 8, "the third");
        Ok(batch)
    };
    let error = all(count(10).batch(4).workers(2).map(fails)).unwrap_err();
    says(&error, &["batch that begins with item 8", "the third"]);
    let cpu = gpipe::tch::Device::Cpu;
    let late = count(10).batch(4).to(cpu).map(Ok);
    says(&all(late).unwrap_err(), &["put `map` before `to`"]);
    let skipped = some_bad(&[2, 9]).batch(4).skip_bad(2);
    let doubled = skipped.map(|batch| Ok(batch * 10));
    let wanted = vec![
        vec![0, 10, 30, 40],
        vec![50, 60, 70, 80],
        vec![100, 110, 120, 130],
    ];
    assert_eq!(all(doubled).unwrap()[..3], wanted);
}

/// A source that shows its items in the wrong form.
struct Odd {
    shown: usize,
}

impl Source for Odd {
    type Item = i64;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, _: u64, index: usize) -> Result<i64, DataError> {
        Ok(index as i64)
    }

    fn batch(
        &self,
        _: u64,
        _: &[usize],
        each: gpipe::data::Each<'_, i64>,
    ) -> std::ops::ControlFlow<()> {
        (0..self.shown).try_for_each(|_| each(Ok(7)))
    }

    fn identity(&self) -> String {
        "odd".to_owned()
    }
}

#[test]
fn a_source_that_shows_too_few_or_too_many_ends_with_an_error_or_is_cut() {
    let error = all(Dataset::new(Odd { shown: 0 }).batch(3)).unwrap_err();
    says(&error, &["item 0", "gives no item"]);
    let wanted = vec![vec![7, 7, 7]; 2];
    for shown in [1, 2, 9] {
        assert_eq!(all(Dataset::new(Odd { shown }).batch(3)).unwrap(), wanted);
    }
}

/// Bad items anywhere, with any number of workers: the same batches, and the same messages.
#[test]
fn what_is_skipped_does_not_depend_on_the_workers() {
    for bad in [
        &[0][..],
        &[19],
        &[3, 4],
        &[0, 7, 8, 15, 19],
        &[16, 17, 18, 19],
    ] {
        let bad: &'static [usize] = Vec::leak(bad.to_vec());
        let run = |workers| {
            let batches = some_bad(bad).shuffle(5, 2).batch(4).epochs(3);
            let mut loader = batches.workers(workers).skip_bad(5).load().unwrap();
            let mut seen = Vec::new();
            while let Some(batch) = loader.next() {
                seen.push((numbers(&batch.unwrap()), loader.state()));
            }
            let skipped = loader.skipped().iter().map(ToString::to_string);
            (seen, skipped.collect::<Vec<_>>())
        };
        let one = run(1);
        let good = 3 * (20 - bad.len());
        assert_eq!(one.0.iter().map(|(own, _)| own.len()).sum::<usize>(), good);
        assert_eq!(one.1.len(), 3 * bad.len());
        assert_eq!(run(2), one, "{bad:?}");
        assert_eq!(run(4), one, "{bad:?}");
    }
}
