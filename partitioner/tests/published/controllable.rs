//! V-Half and V-Min of Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362,
//! with equal times of F, B and W: the bubbles of the table in the README of its authors
//! (sail-sg/zero-bubble-pipeline-parallelism), where B = (p - 1) / (m + p - 1) is that of 1F1B, and
//! the micro-batches in flight of the table beside their demonstration (the Space
//! sail/pipeline-parallelism-with-controllable-memory).

use gpipe_partitioner::{Costs, DeviceId, Micros, ScheduleKind, Shape, simulate};

use crate::table::{Limit, Row, Unit, assert_met};
use crate::zero_bubble::bubble_rate;

const SHAPES: [(usize, usize); 4] = [(4, 32), (8, 64), (16, 128), (24, 192)];

pub(crate) fn rows() -> Vec<Row> {
    let unit = Micros::new(1.0).unwrap();
    let of = |(p, m): (usize, usize)| {
        let bubble = 100.0 * (p - 1) as f64 / (m + p - 1) as f64;
        let kinds = [
            ("1F1B", ScheduleKind::OneFOneB, 1, bubble, p),
            (
                "V-Half",
                ScheduleKind::VHalf,
                2,
                bubble / 2.0,
                p.midpoint(2),
            ),
            ("V-Min", ScheduleKind::VMin, 2, bubble / 1.5, (p + 4) / 3),
        ];
        kinds.map(|(name, kind, chunks, published, memory)| {
            let shape = Shape::new(p, m).with_chunks(chunks);
            let schedule = kind.generate(shape).unwrap();
            let simulation = simulate(&schedule, &Costs::uniform(p * chunks, unit, unit, unit));
            let work = (3 * m * chunks) as f64;
            let devices = (0..p).map(DeviceId);
            let held = devices.map(|device| schedule.peak_in_flight_on(device));
            let row = |what, unit, published, own, limit| Row {
                source: "Controllable Memory, tables of its authors",
                case: format!("p {p}, m {m}, F = B = W"),
                what: format!("{what} of {name}"),
                unit,
                published,
                own,
                limit,
                why: None,
            };
            [
                row(
                    "bubble",
                    Unit::Percent,
                    published,
                    bubble_rate(&simulation, work),
                    Limit::Points(2.0),
                ),
                row(
                    "micro-batches in flight",
                    Unit::MicroBatches,
                    memory as f64,
                    held.fold(0.0, f64::max),
                    Limit::Percent(10.0),
                ),
            ]
        })
    };
    SHAPES.into_iter().flat_map(of).flatten().collect()
}

#[test]
fn v_half_and_v_min_are_met() {
    assert_met(&rows());
}
