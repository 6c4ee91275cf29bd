//! The comparison as one self-contained HTML page.

use super::{causes, numbers, svg::picture};
use crate::explain::Explanation;
use crate::explain::noun;
use crate::render::html::escaped;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
/// Shows the action under the pointer, or the one that the arrow keys went to.
const SCRIPT: &str = include_str!("page.js");

/// A page with the picture of [`compare_svg`](crate::render::compare_svg), a
/// sentence about the difference, and tables of its causes, of the devices' time
/// and of the stages' work; `what` ("Step 3") is what was measured. Loads nothing;
/// readable in light and dark and in black and white, by keyboard and by screen
/// reader.
pub fn compare_html(explanation: &Explanation, what: &str, title: &str) -> String {
    let title = escaped(title);
    let sentence = escaped(&explanation.sentence(what));
    let picture = picture(explanation, what);
    let mut page = String::with_capacity(picture.len() + 16_384);
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p id=\"sentence\">{sentence}</p>\n\
         <p>Measured: {}. Predicted: {}.</p>\n\
         <p id=\"keys\">Point at an action for its times, or go to the picture with the Tab key: the \
         arrow keys lead from action to action, Home and End to a row's first and last.</p>\n\
         <div id=\"chart\" tabindex=\"0\" role=\"application\" aria-label=\"Timelines of {} devices, \
         measured and predicted\" aria-describedby=\"keys\">\n{picture}</div>\n\
         <output id=\"detail\">No action chosen.</output>\n",
        numbers(explanation.measured()),
        numbers(explanation.predicted()),
        explanation.measured().devices(),
    );
    cause_table(&mut page, explanation);
    device_table(&mut page, explanation);
    stage_table(&mut page, explanation);
    let _ = write!(
        page,
        "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    page
}

/// The begin of a table; each column with the explanation of its name.
fn begin(page: &mut String, caption: &str, columns: &[&str]) {
    let _ = write!(page, "<table>\n<caption>{caption}</caption>\n<thead><tr>");
    for column in columns {
        let _ = write!(page, "<th scope=\"col\">{column}</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
}

fn row(page: &mut String, head: &str, cells: &[String]) {
    let _ = write!(page, "<tr><th scope=\"row\">{head}</th>");
    for cell in cells {
        let _ = write!(page, "<td>{cell}</td>");
    }
    page.push_str("</tr>\n");
}

const END: &str = "</tbody>\n</table>\n";

fn cause_table(page: &mut String, explanation: &Explanation) {
    let columns = ["cause", "longer by", "of the prediction", "meaning"];
    begin(page, "Why it differs from the prediction", &columns);
    for cause in causes(explanation) {
        let cells = [cause.delta, cause.share, cause.meaning.to_owned()];
        row(page, cause.name, &cells);
    }
    page.push_str(END);
}

fn device_table(page: &mut String, explanation: &Explanation) {
    let columns = [
        "device",
        "busy",
        "waiting for work",
        "waiting for link",
        "overhead",
        "predicted busy",
        "predicted idle",
    ];
    begin(page, "Each device's time", &columns);
    for device in explanation.devices() {
        let cells = [
            device.busy,
            device.waiting,
            device.link,
            device.overhead,
            device.predicted_busy,
            device.predicted_idle,
        ];
        row(
            page,
            &device.device.to_string(),
            &cells.map(|time| time.to_string()),
        );
    }
    page.push_str(END);
}

fn stage_table(page: &mut String, explanation: &Explanation) {
    let columns = [
        "stage and work",
        "actions",
        "predicted, each",
        "median",
        "longer, together",
        "warm-up",
        "this alone makes the step longer by",
    ];
    begin(page, "Each stage's work", &columns);
    for stage in explanation.stages() {
        let effect = stage.effect.map(|effect| effect.to_string());
        let cells = [
            stage.count.to_string(),
            stage.predicted.to_string(),
            stage.median.to_string(),
            stage.extra.to_string(),
            stage.warm_up.to_string(),
            effect.unwrap_or_else(|| "-".to_owned()),
        ];
        row(
            page,
            &format!("{} {}", stage.stage, noun(stage.kind)),
            &cells,
        );
    }
    page.push_str(END);
}
