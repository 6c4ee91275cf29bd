//! The block-partition heuristic, for comparison.

/// Returns layers per stage by the block partition of a sequence: any two blocks' sums differ by at
/// most the largest weight. A block can be empty.
///
/// It bounds the differences, not the largest block, and so can be far from the optimum; use
/// [`Problem::solve`](super::Problem::solve) instead.
///
/// # Panics
/// If `parts` is 0.
///
/// # Complexity
/// O(layers · parts) moves, each O(parts).
///
/// # Source
/// Bárány and Grolmusz, *Block partitions of sequences*, Israel Journal of Mathematics 206,
/// 2015: the algorithm in the proof of theorem 1. Weights are whole numbers here, in place of
/// reals from 0 to 1, so that it stops exactly.
pub fn block_partition(weights: &[u64], parts: usize) -> Vec<usize> {
    let largest = u128::from(weights.iter().copied().max().unwrap_or(0));
    let mut prefix = vec![0_u128];
    for &weight in weights {
        prefix.push(prefix[prefix.len() - 1] + u128::from(weight));
    }
    let mut cuts: Vec<usize> = (0..=parts)
        .map(|part| part * weights.len() / parts)
        .collect();
    let sum = |cuts: &[usize], part: usize| prefix[cuts[part + 1]] - prefix[cuts[part]];
    loop {
        // (1) A largest block p.
        let p = (0..parts).max_by_key(|&part| sum(&cuts, part)).unwrap_or(0);
        loop {
            // (2) Done when no two differ by more than the largest weight.
            let nearest = |&part: &usize| (sum(&cuts, part), part.abs_diff(p));
            let q = (0..parts).min_by_key(nearest).unwrap_or(0);
            if sum(&cuts, p) <= sum(&cuts, q) + largest {
                return cuts.windows(2).map(|w| w[1] - w[0]).collect();
            }
            // (3) The smallest block q nearest to p takes the next element of its neighbour towards
            // p.
            let neighbour = if p < q {
                cuts[q] -= 1;
                q - 1
            } else {
                cuts[q + 1] += 1;
                q + 1
            };
            // (4) If that neighbour was p, another block may be largest.
            if neighbour == p {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_differ_by_at_most_the_largest_weight(
            weights in proptest::collection::vec(0_u64..50, 1..40),
            parts in 1_usize..8,
        ) {
            let sizes = block_partition(&weights, parts);
            prop_assert_eq!(sizes.iter().sum::<usize>(), weights.len());
            let mut rest = weights.as_slice();
            let sums: Vec<u64> = sizes.iter().map(|&size| {
                let (block, after) = rest.split_at(size);
                rest = after;
                block.iter().sum()
            }).collect();
            let spread = sums.iter().max().unwrap() - sums.iter().min().unwrap();
            prop_assert!(spread <= *weights.iter().max().unwrap());
        }
    }
}
