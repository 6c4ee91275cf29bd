//! The pictures in the generators' docs are what the generators give.

use super::{ScheduleKind, Shape};
use crate::cost::{Costs, StageTimes};
use crate::render;
use crate::simulate::simulate;
use crate::units::Micros;

/// The lines between the fences of the first picture in a file's module docs.
fn drawn(source: &str) -> String {
    let docs = source.lines().filter_map(|line| line.strip_prefix("//!"));
    let picture = docs.skip_while(|line| line.trim() != "```text").skip(1);
    let lines = picture.take_while(|line| line.trim() != "```");
    lines.flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// What the generator gives when each pass of a chunk takes one unit.
fn simulated(kind: ScheduleKind, p: usize, v: usize, m: usize) -> String {
    let shape = Shape::new(p, m).with_chunks(v);
    let unit = Micros::new(1.0).unwrap();
    let times = StageTimes {
        forward: unit,
        backward: if kind == ScheduleKind::DualPipeV {
            unit * 2.0
        } else {
            unit
        },
        input: unit,
        weight: unit,
        recompute: unit,
    };
    let costs = Costs::new(vec![times; shape.stages()]);
    let timeline = simulate(&kind.generate(shape).unwrap(), &costs).timeline;
    let grid = render::grid(&timeline, unit);
    let lines = grid.lines().flat_map(|line| [" ", line.trim_end(), "\n"]);
    lines.collect()
}

#[test]
fn every_picture_is_true() {
    use ScheduleKind::{
        DualPipeV, ForwardOnly, GPipe, Interleaved1F1B, InterleavedZb, LoopedBfs, OneFOneB, VHalf,
        VMin, ZbH1, ZbH2, Zbv,
    };
    let pictures = [
        (GPipe, 3, 1, 4, include_str!("gpipe.rs")),
        (OneFOneB, 3, 1, 4, include_str!("one_f_one_b.rs")),
        (
            Interleaved1F1B,
            2,
            2,
            4,
            include_str!("interleaved_1f1b.rs"),
        ),
        (LoopedBfs, 2, 2, 3, include_str!("looped_bfs.rs")),
        (ZbH1, 3, 1, 4, include_str!("zb_h1.rs")),
        (ZbH2, 3, 1, 5, include_str!("zb_h2.rs")),
        (InterleavedZb, 2, 2, 2, include_str!("interleaved_zb.rs")),
        (Zbv, 2, 2, 3, include_str!("zbv.rs")),
        (VHalf, 2, 2, 3, include_str!("v_half.rs")),
        (VMin, 3, 2, 3, include_str!("v_min.rs")),
        (DualPipeV, 2, 2, 4, include_str!("dualpipe_v.rs")),
        (ForwardOnly, 2, 2, 4, include_str!("forward_only.rs")),
    ];
    for (kind, p, v, m, source) in pictures {
        let (drawn, simulated) = (drawn(source), simulated(kind, p, v, m));
        assert!(
            drawn == simulated,
            "{kind}, drawn:\n{drawn}simulated:\n{simulated}"
        );
    }
}
