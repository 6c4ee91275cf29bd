//! Smoothing and thinning of a curve.

use super::history::Point;

/// Returns the mean of each point and up to `window` - 1 before it.
///
/// *Complexity*: linear, for any window. Nothing is subtracted, so a huge value has no effect
/// beyond its windows.
pub(super) fn smoothed(points: &[Point], window: usize) -> Vec<Point> {
    let blocks = || points.chunks(window.max(1));
    let before: Vec<f64> = blocks().flat_map(|block| sums(block.iter())).collect();
    let behind: Vec<f64> = blocks()
        .flat_map(|block| sums(block.iter().rev()).into_iter().rev())
        .collect();
    let mean = |end: usize| match (end + 1).checked_sub(window) {
        Some(begin) if begin % window != 0 => (behind[begin] + before[end]) / window as f64,
        Some(_) => before[end] / window as f64,
        None => before[end] / (end + 1) as f64,
    };
    (0..points.len())
        .map(|end| (points[end].0, mean(end)))
        .collect()
}

/// Returns the running sums of the values.
fn sums<'a>(points: impl Iterator<Item = &'a Point>) -> Vec<f64> {
    let add = |sum: &mut f64, point: &Point| {
        *sum += point.1;
        Some(*sum)
    };
    points.scan(0.0, add).collect()
}

/// Keeps the first, lowest, highest and last of many points at the same position, in their order:
/// the picture is the same, the file small.
pub(super) fn thinned(points: &[Point], place: impl Fn(u64) -> i64) -> Vec<Point> {
    let mut thin = Vec::new();
    for group in points.chunk_by(|a, b| place(a.0) == place(b.0)) {
        let by_value = |a: &&usize, b: &&usize| group[**a].1.total_cmp(&group[**b].1);
        let all: Vec<usize> = (0..group.len()).collect();
        let ends = [all.first(), all.last()];
        let extremes = [all.iter().min_by(by_value), all.iter().max_by(by_value)];
        let mut kept: Vec<usize> = ends
            .into_iter()
            .chain(extremes)
            .flatten()
            .copied()
            .collect();
        kept.sort_unstable();
        kept.dedup();
        thin.extend(kept.into_iter().map(|index| group[index]));
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_takes_the_mean_of_what_came_before() {
        let points = [(1, 4.0), (2, 2.0), (4, 0.0), (5, 4.0)];
        assert_eq!(smoothed(&points, 1), points);
        assert_eq!(
            smoothed(&points, 3),
            [(1, 4.0), (2, 3.0), (4, 2.0), (5, 2.0)]
        );
        assert_eq!(smoothed(&points, usize::MAX)[3], (5, 2.5));
        // A huge value does not affect means beyond its window.
        let points = [(1, 1e300), (2, 1.0), (3, 2.0), (4, 4.0)];
        assert_eq!(smoothed(&points, 2)[2..], [(3, 1.5), (4, 3.0)]);
    }

    #[test]
    fn what_shares_a_place_keeps_its_ends_and_extremes() {
        let points: Vec<Point> = (0..1000).map(|n| (n, ((n * 7919) % 101) as f64)).collect();
        let thin = thinned(&points, |step| (step / 100) as i64);
        assert!(thin.len() <= 40 && thin.is_sorted_by_key(|point| point.0));
        for group in points.chunks(100) {
            let of = |step: u64| thin.iter().filter(move |point| point.0 / 100 == step / 100);
            let step = group[0].0;
            assert_eq!(of(step).next(), group.first());
            assert_eq!(of(step).next_back(), group.last());
            let high = |points: &[Point]| points.iter().map(|p| p.1).fold(0.0, f64::max);
            let kept: Vec<Point> = of(step).copied().collect();
            assert_eq!(high(&kept), high(group));
        }
    }
}
