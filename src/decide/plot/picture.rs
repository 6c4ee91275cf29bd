//! The charts below each other, with a legend of the runs, as an SVG document.
//!
//! Colours are in a style sheet with one set for light and one for dark backgrounds, which chart
//! libraries do not write.

use std::fmt::Write as _;

use super::axis::Range;
use super::chart::Chart;
use super::field::Field;
use super::history::History;
use super::layout::{
    ABOVE, BELOW, COLOURS, DOT, LEFT, PLOT, RIGHT, WIDTH, escaped, held_out, of_run,
};

/// Height of a line of the legend, in pixels.
const LINE: f64 = 22.0;
const MARGIN: f64 = 14.0;
/// Width of a sample line and, at most, of a character in the legend.
const SAMPLE: f64 = 34.0;
const CHARACTER: f64 = 7.6;
const GAP: f64 = 22.0;
/// Most characters of a name.
const LONGEST: usize = 60;

const STYLE: &str = "<style>\
.plot{background:#fff}.plot text{fill:#15181c}.plot .name{font-weight:bold}\
.plot .ground{fill:#fff}.plot .panel{fill:#f4f6f8;stroke:#8d97a3;stroke-width:.8}\
.plot .grid{stroke:#8d97a3;stroke-width:.5;stroke-opacity:.7;fill:none}\
.plot .mean{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}\
.plot .raw{fill:none;stroke-width:1;stroke-opacity:.35}.plot .dot{stroke:none}\
.plot .any{stroke:#57606a}.plot .any .dot{fill:#57606a}";
/// Colours for a light and a dark background: contrast at least 3:1, and distinguishable with
/// colour blindness.
const LIGHT: [&str; COLOURS] = [
    "#0b62b8", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be185d", "#0f766e", "#57534e",
];
const DARK: [&str; COLOURS] = [
    "#6cb6ff", "#ff9b6b", "#6fd38b", "#c9a2ff", "#e3b341", "#ff8fc0", "#4fd1c5", "#c5c0bb",
];

/// Default number of steps in a mean: single steps of a long run are too noisy.
pub(super) fn usual_window(runs: &[History]) -> usize {
    const WINDOWS: f64 = 50.0;
    let steps = steps(runs);
    // Saturates: a file may have any number for a step.
    ((steps.to - steps.from) / WINDOWS).max(1.0) as usize
}

/// Draws a chart for each field, with a curve for each run; logarithmic if `log`.
pub(super) fn draw(runs: &[History], fields: &[Field], (window, log): (usize, bool)) -> String {
    let each = ABOVE + PLOT + BELOW;
    let steps = steps(runs);
    let charts = |top: f64| -> Vec<Chart<'_>> {
        let charts = (0..).zip(fields);
        let charts = charts.map(|(row, field)| {
            let y = top + each * f64::from(row);
            Chart::new(runs, (field, log), steps, y)
        });
        charts.collect()
    };
    let has_held_out = charts(0.0).iter().any(Chart::has_held_out);
    let entries = entries(runs, has_held_out);
    let places = legend_places(&entries);
    let lines = places.last().map_or(0.0, |(_, y)| y + LINE);
    let charts = charts(MARGIN + lines);
    let height = MARGIN + lines + each * charts.len() as f64 + MARGIN;
    let mut svg = begin(height, &words(&charts, window));
    legend(&mut svg, &entries, &places);
    charts.iter().for_each(|chart| chart.draw(&mut svg, window));
    let what = match window {
        1 => "training step".to_owned(),
        _ => format!("training step (strong: mean of {window} steps)"),
    };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{what}</text>\n</svg>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        height - MARGIN + 4.0
    );
    svg
}

/// Returns the range from the first step of any run to the last.
fn steps(runs: &[History]) -> Range {
    let ends = runs.iter().filter_map(History::steps);
    let ends = ends.flat_map(|(first, last)| [first as f64, last as f64]);
    match Range::of(ends) {
        Some(range) if range.from < range.to => range,
        range => {
            let only = range.map_or(1.0, |range| range.from);
            Range {
                from: only - 1.0,
                to: only + 1.0,
            }
        }
    }
}

fn words(charts: &[Chart<'_>], window: usize) -> String {
    let mut words = "Curves over training steps.".to_owned();
    if window > 1 {
        let _ = write!(words, " Strong lines are means of {window} steps.");
    }
    charts
        .iter()
        .fold(words, |words, chart| words + " " + &chart.words())
}

fn begin(height: f64, words: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" class=\"plot\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"How training went\">\n\
         <desc>{}</desc>\n{STYLE}",
        escaped(words)
    );
    colours(&mut svg, &LIGHT);
    svg.push_str(
        "@media (prefers-color-scheme:dark){.plot{background:#15171b}.plot text{fill:#eceff3}.plot .ground{fill:#15171b}\
         .plot .panel{fill:#1f2329}.plot .any{stroke:#aab2bd}.plot .any .dot{fill:#aab2bd}",
    );
    colours(&mut svg, &DARK);
    svg.push_str("}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
    svg
}

fn colours(svg: &mut String, colours: &[&str; COLOURS]) {
    for (number, colour) in colours.iter().enumerate() {
        let _ = write!(
            svg,
            ".plot .c{number}{{stroke:{colour}}}.plot .c{number} .dot{{fill:{colour}}}"
        );
    }
}

/// Entry of the legend: the style of a curve, and its run.
struct Entry {
    style: String,
    is_marked: bool,
    text: String,
}

/// Returns the entries of the runs, and of held-out data if it is drawn.
fn entries(runs: &[History], has_held_out: bool) -> Vec<Entry> {
    let of_run = |(number, run): (usize, &History)| Entry {
        style: of_run(number),
        is_marked: false,
        text: named(run),
    };
    let mut entries: Vec<Entry> = runs.iter().enumerate().map(of_run).collect();
    if has_held_out {
        let (style, text) = match runs {
            [only] => (held_out(0, 1), format!("{}, held out", named(only))),
            // The held-out curve of a run has the run's colour.
            _ => (
                "class=\"any\" stroke-dasharray=\"6 5\"".to_owned(),
                "held out".to_owned(),
            ),
        };
        entries.push(Entry {
            style,
            is_marked: true,
            text,
        });
    }
    entries
}

/// Returns the positions of the entries.
fn legend_places(entries: &[Entry]) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (LEFT, 0.0);
    let mut places = Vec::new();
    for entry in entries {
        let wide = SAMPLE + CHARACTER * entry.text.chars().count() as f64;
        if x > LEFT && x + wide > WIDTH - RIGHT {
            (x, y) = (LEFT, y + LINE);
        }
        places.push((x, y));
        x += wide + GAP;
    }
    places
}

fn legend(svg: &mut String, entries: &[Entry], places: &[(f64, f64)]) {
    for (entry, (x, y)) in entries.iter().zip(places) {
        let y = MARGIN + y + LINE / 2.0;
        let mark = format!(
            "<circle class=\"dot\" cx=\"{}\" cy=\"{y}\" r=\"{DOT}\"/>",
            x + 13.0
        );
        let _ = writeln!(
            svg,
            "<g {}><path class=\"mean\" d=\"M{x} {y}h26\"/>{}</g>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            entry.style,
            if entry.is_marked { &mark } else { "" },
            x + SAMPLE,
            y + 4.5,
            escaped(&entry.text)
        );
    }
}

/// Cuts the beginning of a name that is too long: paths differ at their ends.
fn named(run: &History) -> String {
    let count = run.name.chars().count();
    if count <= LONGEST {
        return run.name.clone();
    }
    let end: String = run.name.chars().skip(count - LONGEST + 1).collect();
    format!("\u{2026}{end}")
}
