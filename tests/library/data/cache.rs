//! Caches of items.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gpipe::data::{DataError, Dataset, Made, Source, Store, Tokens};

use super::{all, says};

/// Items with a count of how often one is made.
fn counted(made: &Arc<AtomicUsize>) -> Dataset<impl Source<Item = (i64, Vec<i64>)>> {
    let made = Arc::clone(made);
    let items = Dataset::new(Made::new(12, Ok)).shuffle(4, 1);
    items.map_random(3, move |number, random| {
        made.fetch_add(1, Ordering::Relaxed);
        let row = vec![number as i64; 3];
        Ok((random.below(100) as i64, row))
    })
}

/// Two epochs of a chain of pairs.
fn epochs<S: Source<Item = (i64, Vec<i64>)>>(items: Dataset<S>) -> Vec<Vec<i64>> {
    let flat = items.map(|(one, row)| Ok([vec![one], row].concat()));
    all(flat.batch(5).workers(3).epochs(2)).unwrap()
}

#[test]
fn a_memory_cache_makes_each_item_once() {
    let made = Arc::new(AtomicUsize::new(0));
    let plain = epochs(counted(&made));
    assert_eq!(made.swap(0, Ordering::Relaxed), 24);
    let cached = epochs(counted(&made).cache());
    assert_eq!(made.load(Ordering::Relaxed), 12);
    assert_eq!(cached[..3], plain[..3], "the first epoch's items");
    assert_eq!(cached[3..], plain[..3], "for ever");
}

/// Two threads request an item, the second while the first is making it.
fn asked_for_twice<S: Source<Item = i64>>(
    cached: impl FnOnce(Dataset<Made<Box<dyn Fn(usize) -> anyhow::Result<i64> + Send + Sync>>>) -> S,
) -> usize {
    let made = Arc::new(AtomicUsize::new(0));
    let (begun, is_begun) = mpsc::channel();
    let own = Arc::clone(&made);
    let make = move |number: usize| {
        own.fetch_add(1, Ordering::SeqCst);
        begun.send(()).unwrap();
        // Long enough for the other one to arrive, if nothing holds it.
        thread::sleep(Duration::from_millis(100));
        Ok(number as i64)
    };
    let items = cached(Dataset::new(Made::new(4, Box::new(make))));
    thread::scope(|scope| {
        let first = scope.spawn(|| items.get(0, 2).unwrap());
        is_begun.recv().unwrap();
        assert_eq!(items.get(1, 2).unwrap(), 2);
        assert_eq!(first.join().unwrap(), 2);
    });
    made.load(Ordering::SeqCst)
}

/// At the end of an epoch a worker may request an item that another one is still making.
#[test]
fn an_item_that_is_being_made_is_not_made_again() {
    assert_eq!(asked_for_twice(Dataset::cache), 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.cache");
    assert_eq!(asked_for_twice(|items| items.cache_file(path).unwrap()), 1);
}

/// A resumed run has an empty cache, and must fill it with the items of the first run's.
#[test]
fn what_a_cache_holds_does_not_depend_on_the_epoch_that_filled_it() {
    let made = Arc::new(AtomicUsize::new(0));
    let batches = || {
        let flat = counted(&made)
            .cache()
            .map(|(one, row)| Ok([vec![one], row].concat()));
        flat.shuffle(6, 8).batch(5).epochs(2)
    };
    let whole = all(batches()).unwrap();
    let mut loader = batches().load().unwrap();
    for taken in 0..whole.len() {
        let rest = all(batches().resume(&loader.state())).unwrap();
        assert_eq!(rest, whole[taken..]);
        loader.next();
    }
}

#[test]
fn a_file_cache_is_filled_once_and_used_by_later_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.cache");
    let made = Arc::new(AtomicUsize::new(0));
    let plain = epochs(counted(&made));
    made.store(0, Ordering::Relaxed);
    let first = epochs(counted(&made).cache_file(&path).unwrap());
    assert_eq!(made.load(Ordering::Relaxed), 12);
    assert_eq!([&first[..3], &first[3..]], [&plain[..3]; 2]);
    let second = epochs(counted(&made).cache_file(&path).unwrap());
    assert_eq!(made.load(Ordering::Relaxed), 12, "none is made anew");
    assert_eq!(second, first);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_cache_that_was_not_filled_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.cache");
    let made = Arc::new(AtomicUsize::new(0));
    let cached = || counted(&made).cache_file(&path);
    let some = cached().unwrap();
    some.get(0, 3).unwrap();
    says(
        &cached().unwrap_err(),
        &["another process is filling", "items.cache.partial"],
    );
    drop(some);
    assert!(!path.exists());
    // As a killed process leaves it.
    fs::write(folder.path().join("items.cache.partial"), b"half a rec").unwrap();
    made.store(0, Ordering::Relaxed);
    epochs(cached().unwrap());
    assert_eq!(made.load(Ordering::Relaxed), 12);
    assert!(path.exists());
}

#[test]
fn a_damaged_or_foreign_cache_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.cache");
    let made = Arc::new(AtomicUsize::new(0));
    epochs(counted(&made).cache_file(&path).unwrap());

    let other = Dataset::new(Made::new(12, |number| Ok(number as i64)));
    let error = other.cache_file(&path).unwrap_err();
    says(
        &error,
        &["items.cache", "cache of other data", "delete the file"],
    );

    let whole = fs::read(&path).unwrap();
    let read = |path: &Path| -> Result<(), DataError> {
        let cache = counted(&made).cache_file(path)?;
        (0..12).try_for_each(|index| cache.get(0, index).map(drop))
    };
    assert!(read(&path).is_ok());
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let error = read(&path).unwrap_err();
        says(&error, &["items.cache, byte ", "delete the file"]);
    }
    for length in [0, 5, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = read(&path).expect_err("a part of it");
        says(&error, &["items.cache, byte ", "delete the file"]);
    }
}

/// The cache knows its source, but the transformation only by the items' type.
#[test]
fn items_of_another_kind_are_not_taken_for_those_that_were_cached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("items.cache");
    let items = || Dataset::new(Made::new(3, |number| Ok(number as i64)));
    let pairs = items().map(|number| Ok((number, number)));
    let pairs = pairs.cache_file(&path).unwrap();
    (0..3).for_each(|index| assert!(pairs.get(0, index).is_ok()));
    let numbers = items().cache_file(&path).unwrap();
    let error = numbers.get(0, 1).unwrap_err();
    says(
        &error,
        &[
            "items.cache, byte ",
            "another kind",
            "8 of its 16 bytes",
            "delete the file",
        ],
    );
    let rows = items().map(|number| Ok(vec![number; 9]));
    let error = rows.cache_file(&path).unwrap().get(0, 2).unwrap_err();
    says(
        &error,
        &["items.cache, byte ", "another kind", "delete the file"],
    );
}

/// Regression test: numbers were stored and read one by one, and a row grew by doubling, so a cache was ten
/// times slower than reading, and a row took up to twice its memory.
#[test]
fn rows_of_numbers_are_taken_in_one_piece() {
    fn again<T: Store + PartialEq + std::fmt::Debug + Clone>(row: &[T]) {
        let mut bytes = Vec::new();
        row.to_vec().put(&mut bytes).unwrap();
        assert_eq!(bytes[..8], (row.len() as u64).to_le_bytes());
        assert_eq!(bytes.len(), 8 + size_of_val(row));
        let mut rest = &bytes[..];
        let back = Vec::<T>::take(&mut rest).unwrap();
        assert_eq!((&back[..], rest.len()), (row, 0));
        assert_eq!(back.capacity(), row.len(), "of what it needs");
    }
    again(&(0..1001).map(|number| number as u8).collect::<Vec<_>>());
    again(&(-500..501).collect::<Vec<i64>>());
    again(&(0..1001_u16).collect::<Vec<_>>());
    again(&(0..1001).map(|number| number as f32).collect::<Vec<_>>());
    let nested = vec![vec![1_u8, 2], vec![], vec![3]];
    let mut bytes = Vec::new();
    nested.put(&mut bytes).unwrap();
    assert_eq!(Vec::<Vec<u8>>::take(&mut &bytes[..]).unwrap(), nested);
    // A count without the following bytes allocates no memory.
    let huge = (1_u64 << 61).to_le_bytes();
    assert!(Vec::<i64>::take(&mut &huge[..]).is_err());
    assert!(Vec::<u8>::take(&mut &huge[..]).is_err());
}

/// Regression test: a table for endless items panicked.
#[test]
fn what_has_no_end_cannot_be_cached() {
    let folder = tempfile::tempdir().unwrap();
    let windows = || {
        let tokens = Tokens::of_bytes(b"the whale, the whale!");
        tokens.random_windows(4, 1).unwrap()
    };
    let parts = ["cannot be cached", "without end", "before"];
    let mut loader = windows().cache().batch(2).load().unwrap();
    let error = loader.next().unwrap().unwrap_err();
    says(&error, &parts);
    assert!(error.is_wrong_use());
    let path = folder.path().join("items.cache");
    let error = windows().cache_file(&path).unwrap_err();
    says(&error, &parts);
    assert!(error.is_wrong_use());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
