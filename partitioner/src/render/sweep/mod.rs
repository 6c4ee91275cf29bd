//! A sweep as one self-contained HTML page: a chart and a table.

mod svg;

use crate::render::page::{Page, Table, escaped, percent};
use crate::sweep::SweepPoint;
use crate::units::Bytes;

/// A number along which a chart goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    MicroBatches,
    Devices,
    Chunks,
}

impl Axis {
    const ALL: [Self; 3] = [Self::MicroBatches, Self::Devices, Self::Chunks];

    fn of(self, point: &SweepPoint) -> usize {
        match self {
            Self::MicroBatches => point.shape.micro_batches,
            Self::Devices => point.shape.devices,
            Self::Chunks => point.shape.chunks,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::MicroBatches => "micro-batches",
            Self::Devices => "devices",
            Self::Chunks => "chunks",
        }
    }

    /// The different values, in increasing order.
    fn values(self, points: &[SweepPoint]) -> Vec<usize> {
        let mut values: Vec<usize> = points.iter().map(|point| self.of(point)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// What belongs together: a schedule, and what else is not along the axis.
struct Line<'a> {
    name: String,
    points: Vec<&'a SweepPoint>,
}

/// The page: the bubble along what varies most (of equals micro-batches, then devices, then
/// chunks), a line for each schedule and other number, and all numbers in a table. Loads
/// nothing.
pub fn sweep_html(points: &[SweepPoint], title: &str) -> String {
    let mut page = Page::new("a sweep of simulations", title);
    let axis = axis(points);
    page.section(
        "chart",
        "Bubble",
        &svg::picture(axis, points, &lines(axis, points)),
    );
    page.section("numbers", "All numbers", &table(points));
    page.finish()
}

/// What has the most values.
fn axis(points: &[SweepPoint]) -> Axis {
    let count = |axis: &Axis| axis.values(points).len();
    // Of equals the last one.
    let most = Axis::ALL.into_iter().rev().max_by_key(count);
    most.unwrap_or(Axis::MicroBatches)
}

fn lines(along: Axis, points: &[SweepPoint]) -> Vec<Line<'_>> {
    let others: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| *axis != along && axis.values(points).len() > 1)
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for point in points.iter().filter(|point| point.outcome.is_ok()) {
        let mut name = point.schedule.to_string();
        for axis in &others {
            name = format!("{name}, {} {}", axis.of(point), axis.name());
        }
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by_key(|point| along.of(point));
    }
    lines
}

fn table(points: &[SweepPoint]) -> String {
    let columns = [
        "schedule",
        "devices",
        "chunks",
        "micro-batches",
        "step",
        "for each micro-batch",
        "bubble",
        "in flight",
        "peak memory",
    ];
    let mut table = Table::new("Each combination", &columns);
    for point in points {
        let shape = point.shape;
        let mut cells: Vec<String> = [shape.devices, shape.chunks, shape.micro_batches]
            .map(|n| n.to_string())
            .into();
        match &point.outcome {
            Ok(own) => cells.extend([
                own.makespan.to_string(),
                point.each().unwrap_or_default().to_string(),
                percent(own.bubble_fraction),
                format!("{:.2}", own.peak_in_flight),
                memory(own.peak_bytes),
            ]),
            Err(why) => cells.push(format!("*{}", escaped(why))),
        }
        table.row(&point.schedule.to_string(), &cells);
    }
    table.finish()
}

fn memory(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO {
        "-".to_owned()
    } else {
        bytes.to_string()
    }
}
