//! Arrays in memory.

use super::*;
use gpipe::data::{Dataset, Rows};
use gpipe::ndarray::{Array, Array2, ArrayD, Dimension, arr0, array};

fn batches<D: Dimension>(array: Array<i64, D>) -> Vec<Vec<i64>> {
    all(Dataset::new(Rows::new(array).unwrap()).batch(2)).unwrap()
}

#[test]
fn items_are_the_parts_along_the_first_dimension() {
    assert_eq!(batches(array![5_i64, 6, 7]), [vec![5, 6], vec![7]]);
    let rows = array![[1_i64, 2, 3], [4, 5, 6]];
    assert_eq!(batches(rows.clone()), [[1, 2, 3, 4, 5, 6]]);
    assert_eq!(
        batches(rows.reversed_axes()),
        [vec![1, 4, 2, 5], vec![3, 6]]
    );
}

#[test]
fn a_single_number_has_no_items() {
    says(&Rows::new(arr0(1.0_f32)).unwrap_err(), &["no items"]);
}

/// A saved position is valid only for the same numbers.
#[test]
fn other_numbers_are_other_data() {
    let of = |array: Array2<f32>| Rows::new(array).unwrap().identity();
    let zeros = || Array2::zeros((3, 2));
    let mut other = zeros();
    other[[2, 1]] = 1.0;
    assert_eq!(of(zeros()), of(zeros()));
    assert_ne!(of(zeros()), of(other));
    assert_ne!(of(zeros()), of(Array2::zeros((2, 3))));
    let none = Rows::new(ArrayD::<bool>::from_elem(vec![0, 4], true)).unwrap();
    assert_eq!(none.len(), 0);
}
