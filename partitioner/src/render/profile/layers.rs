//! One row per layer, with the cuts between the rows.

use super::rows::{Row, rows};
use super::{ProfilePage, skyline};
use crate::ids::StageId;
use crate::render::page::{bar, name};
use crate::units::{Bytes, Micros};
use crate::words::count;
use std::fmt::{Display, Write as _};

/// With more layers than this, the table scrolls in its own frame, below an overview.
const MANY: usize = 40;
/// Most devices that are listed in a sentence.
const MOST_DEVICES: usize = 16;

/// Returns the legend of colours; stages may run both halves of a backward in one.
fn keys(halves: bool) -> String {
    let both = ("B", "backward of a stage, both gradients in one");
    let keys = [
        ("F", "forward"),
        ("I", "input gradient"),
        ("W", "weight gradient"),
        ("P", "parameters"),
        ("A", "activations kept for the backward"),
    ];
    let mut html = String::from("<ul class=\"keys\" aria-label=\"Legend\">");
    for (class, name) in keys.into_iter().chain((!halves).then_some(both)) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(html, "<li><i class=\"{class}\"></i>{name}</li>");
    }
    html + "</ul>\n"
}

/// Returns the table, with a picture of it for a long model.
pub(super) fn section(page: &ProfilePage<'_>) -> String {
    let stages = rows(page);
    let layers = page.costs.len();
    let mut html = format!(
        "<p>Times of one micro-batch of {}. A dashed line is a cut: what is below it runs as \
         another stage. Bars of stages and of layers have one scale; the share beside a stage\u{2019}s \
         bar is that of the slowest stage, by forward and backward.{}</p>\n{}",
        count(page.plan.micro_batch_size, "sample"),
        of_devices(page),
        keys(page.halves())
    );
    let tall = if layers > MANY {
        html.push_str(&skyline::picture(&stages));
        " tall"
    } else {
        ""
    };
    let _ = write!(
        html,
        "<div class=\"scroll layers{tall}\" role=\"region\" tabindex=\"0\" aria-label=\"Layers of the \
         stages\">\n<table role=\"table\">\n<caption>{} in {}</caption>\n",
        count(layers, "layer"),
        count(stages.len(), "stage")
    );
    let columns = Columns::new(page, &stages);
    columns.head(&mut html);
    for (stage, rows) in stages.iter().enumerate() {
        html.push_str("<tbody role=\"rowgroup\">\n");
        if stage > 0 {
            html.push_str(&cut(page, StageId(stage - 1), columns.count));
        }
        columns.stage(&mut html, page, StageId(stage), rows);
        for row in rows {
            columns.row(&mut html, page, row);
        }
        html.push_str("</tbody>\n");
    }
    html.push_str("</table>\n</div>\n");
    html
}

/// Describes each device's time in a sentence, if devices have several stages.
fn of_devices(page: &ProfilePage<'_>) -> String {
    let placement = &page.plan.placement;
    let devices = placement.iter().map(|own| own.index() + 1).max();
    let mut times = vec![Micros::ZERO; devices.unwrap_or(0)];
    if times.len() == placement.len() || times.len() > MOST_DEVICES {
        return String::new();
    }
    for (stage, device) in placement.iter().enumerate() {
        times[device.index()] += stage_time(page, StageId(stage));
    }
    let each = times.iter().enumerate();
    let each = each.map(|(device, time)| format!("device {device}: {time}"));
    // A computed schedule may run some backwards jointly and others in halves.
    let halves = if page.halves() && page.wholes() {
        " with their backwards in halves; where the schedule runs a backward whole, it takes less"
    } else {
        ""
    };
    format!(
        " All stages of a device together: {}{halves}.",
        each.collect::<Vec<_>>().join(", ")
    )
}

/// Scale of the bars, and the columns that exist.
struct Columns {
    /// Longest time and most bytes of a row or of a stage.
    most: (Micros, Bytes),
    slowest_stage: Micros,
    spread: bool,
    count: usize,
}

impl Columns {
    fn new(page: &ProfilePage<'_>, stages: &[Vec<Row>]) -> Self {
        let all = || stages.iter().flatten();
        let stage_times = (0..stages.len()).map(|stage| stage_time(page, StageId(stage)));
        let slowest_stage = stage_times.max().unwrap_or_default();
        // The halves of a layer may take longer than the joint backward of its stage.
        let slowest_row = all().map(Row::time).max().unwrap_or_default();
        let bytes = |rows: &Vec<Row>| rows.iter().map(Row::bytes).sum::<Bytes>();
        let bytes = stages.iter().map(bytes).max().unwrap_or_default();
        let spread = all().any(|row| row.spread.is_some());
        Self {
            most: (slowest_stage.max(slowest_row), bytes),
            slowest_stage,
            spread,
            count: 9 + usize::from(spread),
        }
    }

    fn head(&self, html: &mut String) {
        let mut columns = vec![
            ("w", "layer"),
            ("", "together"),
            ("w t", "time"),
            ("", "forward"),
            ("", "input gradient"),
            ("", "weight gradient"),
            ("w m", "bytes"),
            ("", "parameters"),
            ("", "kept"),
        ];
        if self.spread {
            columns.push(("", "spread"));
        }
        html.push_str("<thead role=\"rowgroup\"><tr role=\"row\">");
        for (class, column) in columns {
            let _ = write!(
                html,
                "<th role=\"columnheader\" scope=\"col\" class=\"{class}\">{column}</th>"
            );
        }
        html.push_str("</tr></thead>\n");
    }

    fn row(&self, html: &mut String, page: &ProfilePage<'_>, row: &Row) {
        let times = [("F", row.forward), ("I", row.input), ("W", row.weight)];
        let _ = write!(
            html,
            "<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">{}</th>",
            row_name(page, row)
        );
        cell(html, "together", row.time());
        time_bar(html, &times, self.most.0, "");
        cell(html, "forward", row.forward);
        cell(html, "input gradient", row.input);
        cell(html, "weight gradient", row.weight);
        amounts(html, row.parameters, row.kept, self.most.1);
        if self.spread {
            let spread = row
                .spread
                .map(|share| format!("\u{b1} {:.0} %", 50.0 * share));
            cell(html, "spread", spread.as_deref().unwrap_or("\u{2013}"));
        }
        html.push_str("</tr>\n");
    }

    /// Writes the stage's name, device and totals, as the schedule runs it.
    fn stage(&self, html: &mut String, page: &ProfilePage<'_>, stage: StageId, rows: &[Row]) {
        let times = page.simulation.costs().stage(stage);
        let (whole, longest) = (stage_time(page, stage), self.most.0);
        let offloads = match page.plan.offload.get(stage.index()) {
            Some(true) => "<br><span class=\"badge\">offloads activations</span>",
            _ => "",
        };
        let recomputes = match page.plan.recompute.get(stage.index()) {
            Some(true) => "<br><span class=\"badge\">recomputes its forward</span>",
            _ => "",
        };
        let _ = write!(
            html,
            "<tr role=\"row\" class=\"stage\"><th role=\"rowheader\" scope=\"rowgroup\"><b>Stage \
             {stage}</b> on device {}{recomputes}{offloads}</th>",
            page.plan.placement[stage.index()]
        );
        cell(html, "together", whole);
        let note = format!("{:.0} %", 100.0 * part(whole, self.slowest_stage));
        if page.halves() {
            let pieces = [
                ("F", times.forward),
                ("I", times.input),
                ("W", times.weight),
            ];
            time_bar(html, &pieces, longest, &note);
            cell(html, "forward", times.forward);
            cell(html, "input gradient", times.input);
            cell(html, "weight gradient", times.weight);
        } else {
            let pieces = [("F", times.forward), ("B", times.backward)];
            time_bar(html, &pieces, longest, &note);
            cell(html, "forward", times.forward);
            let _ = write!(
                html,
                "<td role=\"cell\" colspan=\"2\" data-k=\"backward\">{} both in one</td>",
                times.backward
            );
        }
        let parameters = rows.iter().map(|row| row.parameters).sum();
        let kept = rows.iter().map(|row| row.kept).sum();
        amounts(html, parameters, kept, self.most.1);
        if self.spread {
            html.push_str("<td role=\"cell\"></td>");
        }
        html.push_str("</tr>\n");
    }
}

/// Writes a number, with the name of its column for windows without room for columns.
fn cell(html: &mut String, key: &str, number: impl Display) {
    let _ = write!(html, "<td role=\"cell\" data-k=\"{key}\">{number}</td>");
}

fn part(time: Micros, whole: Micros) -> f64 {
    time.get() / whole.get().max(f64::MIN_POSITIVE)
}

fn time_bar(html: &mut String, pieces: &[(&str, Micros)], whole: Micros, note: &str) {
    let pieces = pieces
        .iter()
        .map(|&(class, time)| (class, part(time, whole)));
    let bar = bar(&pieces.collect::<Vec<_>>());
    let _ = write!(html, "<td role=\"cell\" class=\"w t\">{bar}{note}</td>");
}

/// Writes parameters and activations, as a bar and in numbers.
fn amounts(html: &mut String, parameters: Bytes, kept: Bytes, whole: Bytes) {
    let share = |bytes: Bytes| bytes.get() as f64 / whole.get().max(1) as f64;
    let bar = bar(&[("P", share(parameters)), ("A", share(kept))]);
    let _ = write!(html, "<td role=\"cell\" class=\"w m\">{bar}</td>");
    cell(html, "parameters", parameters);
    cell(html, "kept", kept);
}

fn row_name(page: &ProfilePage<'_>, row: &Row) -> String {
    let of = |layer: usize| name(&page.profile.layers()[layer].name);
    match row.layers {
        1 => of(row.first),
        layers => format!(
            "{} \u{2026} {} ({layers} layers)",
            of(row.first),
            of(row.first + layers - 1)
        ),
    }
}

/// Returns the time of a stage for one micro-batch, as the schedule runs it.
fn stage_time(page: &ProfilePage<'_>, stage: StageId) -> Micros {
    page.simulation.costs().work(stage, page.halves())
}

/// Writes the line after `stage`, with the values that cross it.
fn cut(page: &ProfilePage<'_>, stage: StageId, columns: usize) -> String {
    let end = page.plan.partition.range(stage).end;
    let of = |layer: usize| name(&page.profile.layers()[layer].name);
    let output = page.costs[end - 1].output;
    let placement = &page.plan.placement;
    let edge = page.simulation.costs().edge(stage);
    let takes = edge.occupancy + edge.latency;
    let way = if placement[stage.index()] == placement[stage.index() + 1] {
        ", on the same device".to_owned()
    } else if takes > Micros::ZERO {
        format!(", {takes} each way")
    } else {
        String::new()
    };
    format!(
        "<tr role=\"row\" class=\"cut\"><td role=\"cell\" colspan=\"{columns}\">cut: {} hands {output} \
         to {}{way}</td></tr>\n",
        of(end - 1),
        of(end)
    )
}
