//! Throughputs of Huang et al., "GPipe", arXiv:1811.06965: the Transformers of tables 2 (48 layers,
//! TPUs) and 3 (24 layers, P100s). All their layers are equal, by section 3; for the unequal layers of
//! `AmoebaNet` no times are published.

use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};

use crate::table::{Limit, Row, Unit, assert_met};

const PARTITIONS: [usize; 3] = [2, 4, 8];
/// Table 2 by M.
const TPU: [(usize, [f64; 3]); 3] = [
    (1, [1.0, 1.07, 1.3]),
    (4, [1.7, 3.2, 4.8]),
    (32, [1.8, 3.4, 6.3]),
];
/// Table 3, M = 32.
const GPU: [f64; 3] = [1.0, 1.8, 3.3];

/// Returns the time of a mini-batch on K partitions in M micro-batches, with all stages recomputing; a
/// whole forward takes 1, a backward 2.
fn time(partitions: usize, micro_batches: usize) -> f64 {
    let part = 1e6 / (partitions * micro_batches) as f64;
    let time = Micros::new(part).unwrap();
    let costs = Costs::from_stage_times(&vec![time; partitions], &vec![time * 3.0; partitions]);
    let shape = Shape::new(partitions, micro_batches);
    let schedule = ScheduleKind::GPipe.generate(shape).unwrap();
    simulate(&schedule, &costs).makespan().get() / 1e6
}

pub(crate) fn rows() -> Vec<Row> {
    let row = |source, (k, m), base, published| {
        Row {
        source,
        case: format!("Transformer, K {k}, M {m}"),
        what: "throughput by that of the first".to_owned(),
        unit: Unit::Times,
        published,
        own: base / time(k, m),
        limit: Limit::Percent(10.0),
        why: (m == 4 || (k == 8 && m == 1)).then_some(
            "more than K devices can gain over the first row, whose one micro-batch keeps one of its \
             two devices busy at a time: the paper adjusted batch sizes to memory between its \
             rows and does not say how",
        ),
    }
    };
    let mut rows = Vec::new();
    for (m, published) in TPU {
        let own = PARTITIONS.into_iter().zip(published);
        rows.extend(own.map(|(k, value)| row("GPipe, table 2", (k, m), time(2, 1), value)));
    }
    let own = PARTITIONS.into_iter().zip(GPU);
    rows.extend(own.map(|(k, value)| row("GPipe, table 3", (k, 32), time(2, 32), value)));
    rows
}

#[test]
fn the_throughputs_of_gpipe_are_met() {
    assert_met(&rows());
}
