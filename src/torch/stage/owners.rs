//! Assignment of a stage's parameters to the replicas that own them.

/// Assigns each number of bytes to a replica: the largest first, to the replica with the fewest
/// bytes, or the first of several such.
pub(super) fn owners(bytes: &[u64], replicas: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(bytes[*place]));
    let mut loads = vec![0; replicas];
    let mut owners = vec![0; bytes.len()];
    for place in order {
        let least = (0..replicas).min_by_key(|replica| loads[*replica]);
        owners[place] = least.unwrap_or_default();
        loads[owners[place]] += bytes[place];
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shared_out_by_their_bytes() {
        assert_eq!(owners(&[4, 100, 4, 60, 40], 2), [0, 0, 1, 1, 1]);
        assert_eq!(owners(&[8, 8, 8, 8], 4), [0, 1, 2, 3]);
        assert_eq!(owners(&[8], 2), [0]);
        assert!(owners(&[], 2).is_empty());
    }
}
