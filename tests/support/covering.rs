//! Covering subsets of combinations.

use std::collections::HashSet;

/// Each pair of a combination's values on different axes.
pub(crate) fn pairs(axes: &[String]) -> Vec<String> {
    let second = 0..axes.len();
    let pair = |second: usize| (0..second).map(move |first| (first, second));
    let all = second.flat_map(pair);
    all.map(|(first, second)| format!("{}, {}", axes[first], axes[second]))
        .collect()
}

/// Names of a few combinations that cover each possible pair of values on different axes. Each combination is
/// given by its name and its [`pairs`].
pub(crate) fn covering(named: &[(String, Vec<String>)]) -> HashSet<String> {
    let (mut met, mut chosen) = (HashSet::new(), HashSet::new());
    // Begins with combinations all of whose pairs are new.
    let most = named.iter().map(|(_, pairs)| pairs.len()).max();
    for least in (1..=most.unwrap_or(0)).rev() {
        for (name, pairs) in named {
            if pairs.iter().filter(|pair| !met.contains(*pair)).count() >= least {
                met.extend(pairs);
                chosen.insert(name.clone());
            }
        }
    }
    chosen
}
