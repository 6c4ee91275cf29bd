//! Recompute and offload of single micro-batches by a schedule, in words.

use gpipe_partitioner::Schedule;

/// Formats a cell: whether a stage treats all micro-batches so, `single` of them, or none.
pub(super) fn cell(all: bool, single: usize, micro_batches: usize) -> String {
    match (all, single) {
        (true, _) => "yes".to_owned(),
        (false, 0) => "no".to_owned(),
        (false, single) => format!("{single} of {micro_batches}"),
    }
}

/// Says in a sentence which stages recompute or offload single micro-batches; none if none does.
pub(super) fn sentence(schedule: &Schedule) -> Option<String> {
    let of = schedule.micro_batches();
    let words = |what: &str, counts: Vec<usize>| {
        let counts = counts.into_iter().enumerate();
        let stages: Vec<String> = (counts.filter(|(_, count)| *count > 0))
            .map(|(stage, count)| format!("{count} of {of} on stage {stage}"))
            .collect();
        (!stages.is_empty()).then(|| format!("{what}: {}", stages.join(", ")))
    };
    let all = [
        words("recomputed", schedule.recompute_counts()),
        words("offloaded", schedule.offload_counts()),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("single micro-batches are {}", all.join("; ")))
}
