//! Tests that the pictures in the generators' docs match the generators.

use super::table::SOURCES;
use super::{ScheduleKind, Shape};
use crate::cost::{Costs, StageTimes};
use crate::render;
use crate::simulate::simulate;
use crate::units::Micros;

/// Returns the lines between the fences of the first picture in a file's module docs.
fn drawn(source: &str) -> String {
    let docs = source.lines().filter_map(|line| line.strip_prefix("//!"));
    let picture = docs.skip_while(|line| line.trim() != "```text").skip(1);
    let lines = picture.take_while(|line| line.trim() != "```");
    lines.flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// Returns the sentence above the picture: "With p = 2, v = 2, m = 4, …".
fn caption(source: &str) -> &str {
    let is_caption = |line: &&str| line.starts_with("//! With p = ");
    source.lines().find(is_caption).unwrap()
}

/// Returns the number that a caption gives for `letter`.
fn number(caption: &str, letter: char) -> Option<usize> {
    let (_, rest) = caption.split_once(&format!("{letter} = "))?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Draws the generator's output for the caption's numbers; each pass of a chunk takes one unit, a
/// joint backward two if the caption says so.
fn simulated(kind: ScheduleKind, caption: &str) -> String {
    let [p, m] = ['p', 'm'].map(|letter| number(caption, letter).unwrap());
    let shape = Shape::new(p, m).with_chunks(number(caption, 'v').unwrap_or(1));
    let unit = Micros::new(1.0).unwrap();
    let joint = if caption.contains("B as long as both") {
        unit * 2.0
    } else {
        unit
    };
    let times = StageTimes {
        forward: unit,
        backward: joint,
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
    assert!(SOURCES.len() >= 12);
    for &(kind, source) in SOURCES {
        let (drawn, simulated) = (drawn(source), simulated(kind, caption(source)));
        assert!(
            drawn == simulated,
            "{kind}, drawn:\n{drawn}simulated:\n{simulated}"
        );
    }
}
