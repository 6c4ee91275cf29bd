//! Draws the last step: when each device computes, and when its copies are in flight.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
/// Layout of a device's row: its kernels, and below them its outgoing copies.
const ROW: f64 = 34.0;
const KERNELS: f64 = 16.0;
const COPIES: f64 = 8.0;
/// Kernels this close, in microseconds, are drawn as one.
const NEAR: f64 = 20.0;

type Times = Vec<(f64, f64)>;

/// Time intervals of one device's kernels and copies, in microseconds.
#[derive(Default)]
struct Lane {
    kernels: Times,
    copies: Times,
}

/// Draws the last `length` microseconds of a trace of the simulated devices. Also returns the share of the
/// time of copies between devices in which the receiving device computes.
pub(crate) fn of_the_end(trace: &str, length: f64) -> Result<(String, f64)> {
    let trace: Value = serde_json::from_str(trace)?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let event = |event: &Value| {
        let begin = event["ts"].as_f64()?;
        let device = event["pid"].as_str()?.to_owned();
        let unit = event["tid"].as_str()?.to_owned();
        Some((device, unit, begin, begin + event["dur"].as_f64()?))
    };
    let events: Vec<_> = events.iter().filter_map(event).collect();
    let kernels = events.iter().filter(|(_, unit, ..)| unit == "kernels");
    let end = kernels.map(|(.., end)| *end).fold(0.0, f64::max);
    let mut lanes: BTreeMap<String, Lane> = BTreeMap::new();
    let mut between = Vec::new();
    for (device, unit, from, to) in events {
        if from < end - length || to > end {
            continue;
        }
        let times = (from - (end - length), to - (end - length));
        let lane = lanes.entry(device).or_default();
        match unit.as_str() {
            "kernels" => lane.kernels.push(times),
            _ => lane.copies.push(times),
        }
        if let Some(other) = unit.strip_prefix("to cuda") {
            between.push((format!("cuda{other}"), times));
        }
    }
    for lane in lanes.values_mut() {
        lane.kernels = merged(std::mem::take(&mut lane.kernels));
        lane.copies.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let hidden = hidden(&lanes, &between);
    Ok((svg(&lanes, length, hidden), hidden))
}

/// Merges intervals whose gaps are too small to see.
fn merged(mut times: Times) -> Times {
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut all: Times = Vec::new();
    for (from, to) in times {
        match all.last_mut() {
            Some(last) if from <= last.1 + NEAR => last.1 = last.1.max(to),
            _ => all.push((from, to)),
        }
    }
    all
}

/// The share of the copies' time in which the receiving device computes.
fn hidden(lanes: &BTreeMap<String, Lane>, between: &[(String, (f64, f64))]) -> f64 {
    let (mut all, mut behind) = (0.0, 0.0);
    for (to, (from, until)) in between {
        all += until - from;
        let kernels = lanes.get(to).into_iter().flat_map(|lane| &lane.kernels);
        let both = kernels.map(|(begin, end)| end.min(*until) - begin.max(*from));
        behind += both.filter(|both| *both > 0.0).sum::<f64>();
    }
    behind / all
}

fn svg(lanes: &BTreeMap<String, Lane>, length: f64, hidden: f64) -> String {
    let height = TOP + ROW * lanes.len() as f64 + 26.0;
    let scale = (WIDTH - LEFT - 10.0) / length;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" class=\"tl\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"kernels and copies of a step\">\n\
         <desc>Two rows a device, time from left to right, {:.1} ms: kernels, and below them the \
         copies that leave the device.</desc>\n\
         <style>.tl text{{fill:#15181c}}.tl .ground{{fill:#fff}}.tl .lane{{fill:#f1f3f5}}\
         .tl .kernels{{fill:#8ec8f2}}.tl .copies{{fill:#d9480f}}.tl .tick{{stroke:#333}}\
         @media (prefers-color-scheme:dark){{.tl text{{fill:#eceff3}}.tl .ground{{fill:#15171b}}\
         .tl .lane{{fill:#262a31}}.tl .copies{{fill:#ff922b}}.tl .tick{{stroke:#bbb}}}}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <rect class=\"kernels\" x=\"{LEFT}\" y=\"8\" width=\"14\" height=\"14\"/><text x=\"{}\" y=\"20\">kernels</text>\n\
         <rect class=\"copies\" x=\"{}\" y=\"8\" width=\"14\" height=\"14\"/><text x=\"{}\" y=\"20\">copies to \
         other devices: during {:.0} % of their time the receiving device computes, too</text>\n",
        length / 1e3,
        LEFT + 20.0,
        LEFT + 90.0,
        LEFT + 110.0,
        100.0 * hidden,
    );
    for (number, (name, lane)) in lanes.iter().enumerate() {
        let y = TOP + ROW * number as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{name}</text>", y + 15.0);
        let mut row = |class: &str, y: f64, height: f64, times: &[(f64, f64)], least: f64| {
            let _ = writeln!(
                svg,
                "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{height}\"/><path class=\"{class}\" d=\"",
                WIDTH - LEFT - 10.0
            );
            for (from, to) in times {
                let width = ((to - from) * scale).max(least);
                let _ = write!(
                    svg,
                    "M{:.1} {y}h{width:.1}v{height}h-{width:.1}z",
                    LEFT + from * scale
                );
            }
            svg.push_str("\"/>\n");
        };
        row("kernels", y, KERNELS, &lane.kernels, 0.1);
        row("copies", y + KERNELS + 2.0, COPIES, &lane.copies, 0.6);
    }
    let bottom = TOP + ROW * lanes.len() as f64;
    for time in ticks(length / 1e3) {
        let x = LEFT + time * 1e3 * scale;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<path class=\"tick\" d=\"M{x:.1} {bottom}v5\"/><text x=\"{x:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{time} ms</text>",
            height - 6.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// At most ten round times from 0 to `length`, in the same unit.
fn ticks(length: f64) -> impl Iterator<Item = f64> {
    let steps = (-3..).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let step = steps.into_iter().find(|step| length / step < 10.0);
    let step = step.unwrap_or(length);
    (0..10)
        .map(move |number| f64::from(number) * step)
        .take_while(move |time| *time <= length)
}
