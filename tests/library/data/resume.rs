//! A saved position is exact.

use gpipe::data::{Batches, DataError, Dataset, Made};
use gpipe::tch::Tensor;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{all, numbers, says};

/// 23 items, three of them bad, shuffled and randomly transformed, over three epochs.
fn batches(size: usize, workers: usize) -> Batches<impl gpipe::data::Source<Item = i64>, Tensor> {
    let items = Made::new(23, |number| {
        anyhow::ensure!(number % 8 != 3, "bad");
        Ok(number as i64)
    });
    let items = Dataset::new(items).shuffle(10, 4);
    let random = items.map_random(9, |number, random| {
        Ok(number * 100 + random.below(100) as i64)
    });
    random.batch(size).epochs(3).workers(workers).skip_bad(3)
}

#[test]
fn a_loader_goes_on_from_every_position() {
    let whole = all(batches(4, 2)).unwrap();
    assert_eq!(whole.len(), 15);
    let mut loader = batches(4, 3).load().unwrap();
    for taken in 0..=whole.len() {
        // As stored in a checkpoint.
        let state: Value = serde_json::from_str(&loader.state().to_string()).unwrap();
        let rest = all(batches(4, 1 + taken % 3).resume(&state)).unwrap();
        assert_eq!(rest, whole[taken..], "after {taken} batches: {state}");
        let begun = batches(4, 1).resume(&state).load().unwrap();
        assert_eq!(begun.state(), state, "nothing is consumed yet");
        assert_eq!(loader.next().is_some(), taken < whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn stops_anywhere_leave_the_items_the_same(stops in prop::collection::vec((1_usize..6, 0_usize..4), 1..5)) {
        let whole = all(batches(4, 1)).unwrap().concat();
        let mut items = Vec::new();
        let mut state = None;
        // Another batch size and number of workers each time: the position does not depend on them, except
        // where batches end with an epoch.
        for (size, taken) in stops {
            let mut next = batches(size, size);
            if let Some(state) = &state {
                next = next.resume(state);
            }
            let mut loader = next.load().unwrap();
            for batch in loader.by_ref().take(taken) {
                items.extend(numbers(&batch.unwrap()));
            }
            state = Some(loader.state());
        }
        items.extend(all(batches(4, 2).resume(&state.unwrap())).unwrap().concat());
        prop_assert_eq!(items, whole);
    }
}

#[test]
fn the_bad_items_of_an_epoch_count_over_a_stop() {
    let mut loader = batches(4, 1).load().unwrap();
    let skips = |loader: &gpipe::data::Loader<Tensor>| loader.skipped().len();
    while skips(&loader) == 0 {
        assert!(loader.next().unwrap().is_ok());
    }
    let state = loader.state();
    assert_eq!(state["skipped"], skips(&loader));
    let error = all(batches(4, 1).skip_bad(2).resume(&state)).unwrap_err();
    says(&error, &["3 bad items in epoch 0"]);
}

#[test]
fn a_position_in_other_data_is_refused() {
    let count = |len| Dataset::new(Made::new(len, |number| Ok(number as i64)));
    let state = count(10).shuffle(5, 1).batch(2).load().unwrap().state();
    let resumed = |batches: Batches<_, Tensor>| all(batches).unwrap_err();
    let error = resumed(count(11).shuffle(5, 1).batch(2).resume(&state));
    assert!(matches!(error, DataError::OtherData { .. }));
    says(&error, &["it was 10 items", "this is 11 items"]);
    let error = resumed(count(10).shuffle(5, 2).batch(2).resume(&state));
    says(&error, &["with seed 1", "with seed 2"]);
    let error = resumed(count(10).shuffle(6, 1).batch(2).resume(&state));
    says(&error, &["windows of 5", "windows of 6"]);
    for wrong in [json!({}), json!(7), json!({"data": "x", "epoch": -1})] {
        let error = resumed(count(10).shuffle(5, 1).batch(2).resume(&wrong));
        says(&error, &["cannot be read"]);
    }
}
