#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn balance_becomes_ranges() {
    let partition = Partition::from_balance(10, &[3, 5, 2]).unwrap();
    assert_eq!(partition.layers(), 10);
    assert_eq!(partition.stages(), 3);
    assert_eq!(partition.range(StageId(1)), 3..8);
    assert_eq!(partition.stage_of(LayerId(2)), StageId(0));
    assert_eq!(partition.stage_of(LayerId(3)), StageId(1));
    assert_eq!(partition.stage_of(LayerId(9)), StageId(2));
    assert_eq!(partition.balance(), [3, 5, 2]);
}

#[test]
fn errors_say_what_is_left_out() {
    let error = |layers, balance: &[usize]| {
        Partition::from_balance(layers, balance)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(10, &[3, 5]),
        "balance 3,5 covers 8 layers, the model has 10: it leaves out layers 8..9"
    );
    assert_eq!(
        error(9, &[3, 5]),
        "balance 3,5 covers 8 layers, the model has 9: it leaves out layer 8"
    );
    assert_eq!(
        error(5, &[3, 5]),
        "balance 3,5 covers 8 layers, the model has 5: take 3 out of it"
    );
    assert_eq!(
        error(3, &[3, 0]),
        "balance 3,0 leaves stage 1 empty: every stage needs at least one layer"
    );
    assert_eq!(error(3, &[]), "a partition needs at least one stage");
    assert!(error(3, &[usize::MAX, usize::MAX]).contains("the model has 3"));
    assert_eq!(
        Partition::uniform(3, 4).unwrap_err().to_string(),
        "4 stages need at least 4 layers, the model has 3"
    );
}

#[test]
fn uniform_gives_the_first_stages_one_more() {
    assert_eq!(Partition::uniform(10, 4).unwrap().balance(), [3, 3, 2, 2]);
    assert_eq!(Partition::uniform(4, 4).unwrap().balance(), [1; 4]);
}

#[test]
fn weights_without_parameters_fall_back_to_counts() {
    let partition = Partition::by_weight(&[0; 10], 4).unwrap();
    assert_eq!(partition.balance(), [3, 3, 2, 2]);
    // One layer has all the weight: the others are spread around it.
    let partition = Partition::by_weight(&[0, 0, 9, 0, 0, 0], 3).unwrap();
    assert!(partition.balance().iter().all(|&count| count >= 1));
}

#[test]
fn equal_weights_split_evenly() {
    let balance = Partition::by_weight(&[7; 12], 4).unwrap().balance();
    assert_eq!(balance, [3; 4]);
    let balance = Partition::by_weight(&[u64::MAX; 6], 3).unwrap().balance();
    assert_eq!(balance, [2; 3]);
}

/// Ties go to the even filling: [1,1,1,1,4] over 3 could also be [3,1,1].
#[test]
fn ties_go_to_even_stages() {
    let balance = Partition::by_weight(&[1, 1, 1, 1, 4], 3).unwrap().balance();
    assert_eq!(balance, [2, 2, 1]);
}

/// Returns the optimum by trying every set of cuts.
fn brute_force(weights: &[u64], stages: usize) -> u64 {
    if stages == 1 {
        return weights.iter().sum();
    }
    (1..=weights.len() + 1 - stages)
        .map(|first| {
            let head: u64 = weights[..first].iter().sum();
            head.max(brute_force(&weights[first..], stages - 1))
        })
        .min()
        .unwrap()
}

proptest! {
    #[test]
    fn by_weight_is_optimal(
        weights in proptest::collection::vec(0_u64..20, 1..10),
        stages in 1_usize..10,
    ) {
        prop_assume!(stages <= weights.len());
        let partition = Partition::by_weight(&weights, stages).unwrap();
        let heaviest = (0..stages)
            .map(|s| weights[partition.range(StageId(s))].iter().sum::<u64>())
            .max();
        prop_assert_eq!(heaviest, Some(brute_force(&weights, stages)));
        let again = Partition::from_balance(weights.len(), &partition.balance()).unwrap();
        prop_assert_eq!(partition.stages(), stages);
        prop_assert_eq!(again, partition);
    }
}

#[test]
fn all_cuts_are_all_different_and_complete() {
    let balances = |layers, stages| -> Vec<Vec<usize>> {
        let all = Partition::all(layers, stages, 1000).unwrap();
        all.iter().map(Partition::balance).collect()
    };
    assert_eq!(balances(4, 3), [[1, 1, 2], [1, 2, 1], [2, 1, 1]]);
    assert_eq!(balances(3, 1), [[3]]);
    assert_eq!(balances(3, 3), [[1, 1, 1]]);
    let many = balances(9, 4);
    assert_eq!(many.len(), 56);
    assert!(many.is_sorted_by(|a, b| a < b));
    for balance in many {
        assert!(Partition::from_balance(9, &balance).is_ok());
    }
    assert_eq!(Partition::all(9, 4, 55), None);
    assert_eq!(Partition::all(10_000, 5_000, 1000), None);
    assert_eq!(Partition::all(2, 3, 1000), None);
    // A single possible cut also exceeds a limit of 0.
    assert_eq!(Partition::all(3, 3, 0), None);
}
