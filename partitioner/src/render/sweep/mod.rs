//! A sweep as one self-contained HTML page: a chart and a table.

mod lines;
mod marks;
mod svg;

use crate::render::page::{Page, Table, escaped, percent};
use crate::sweep::{RiskColumns, SweepPoint};
use crate::units::Bytes;
use crate::words::{count, two_decimals};
use lines::{Axis, along, lines};

/// Returns the page: the bubble (with failures, all time that is lost) along the parameter with most values
/// (first among equals: micro-batches, then devices, chunks, jitter and failures), a line for each schedule
/// and other parameter, and all numbers in a table. Coinciding lines alternate, and coinciding points are
/// nested, so that each is visible. `notes` explain the numbers, such as the times they are based on. Loads
/// nothing.
pub fn sweep_html(points: &[SweepPoint], title: &str, notes: &[String]) -> String {
    let mut page = Page::new("a sweep of simulations", title);
    page.notes(&[], notes);
    let axis = along(points);
    let lines = lines(axis, points);
    let mut chart = svg::picture(axis, points, &lines);
    chart.push_str(&marks::legend(&lines));
    chart.push_str(&chunks(points));
    page.section("chart", svg::what(points), &chart);
    page.section("numbers", "All numbers", &table(points));
    page.finish()
}

/// Describes the number of chunks of the lines, unless their names have it.
fn chunks(points: &[SweepPoint]) -> String {
    let there = || points.iter().filter(|point| point.outcome.is_ok());
    let numbers = Axis::Chunks.values(points);
    if numbers.len() < 2 || lines::is_swept(Axis::Chunks, points) {
        return String::new();
    }
    let of = |number: &f64| {
        let mut names: Vec<String> = there()
            .filter(|point| Axis::Chunks.of(point).total_cmp(number).is_eq())
            .map(|point| point.schedule.to_string())
            .collect();
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let each = count(*number as usize, "chunk");
        (!names.is_empty()).then(|| format!("{each} a device: {}", names.join(", ")))
    };
    let each: Vec<String> = numbers.iter().filter_map(of).collect();
    format!("<p class=\"hint\">{}.</p>\n", escaped(&each.join("; ")))
}

fn table(points: &[SweepPoint]) -> String {
    let risks = RiskColumns::of(points);
    let mut columns = vec!["schedule", "devices", "micro-batches", "chunks"];
    columns.extend(risks.given_titles());
    columns.extend(["step", "per micro-batch", "bubble", "in flight"]);
    let outcomes = || {
        points
            .iter()
            .filter_map(|point| point.outcome.as_ref().ok())
    };
    let knows_memory = outcomes().any(|own| own.peak_bytes > Bytes::ZERO);
    columns.extend(knows_memory.then_some("peak memory"));
    columns.extend(risks.found_titles());
    let mut table = Table::new("Each combination", &columns);
    for point in points {
        let shape = point.shape;
        let mut cells: Vec<String> = [shape.devices, shape.micro_batches, shape.chunks]
            .map(|n| n.to_string())
            .into();
        cells.extend(risks.given(point));
        match &point.outcome {
            Ok(own) => {
                cells.extend([
                    own.step().to_string(),
                    point.each().unwrap_or_default().to_string(),
                    percent(own.bubble()),
                    two_decimals(own.peak_in_flight),
                ]);
                cells.extend(knows_memory.then(|| memory(own.peak_bytes)));
                cells.extend(risks.found(own));
            }
            Err(why) => cells.push(format!("*{}", escaped(why))),
        }
        table.row(&point.schedule.to_string(), &cells);
    }
    table.finish()
}

fn memory(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO {
        "\u{2013}".to_owned()
    } else {
        bytes.to_string()
    }
}
