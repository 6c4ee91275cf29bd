//! What charts and the picture around them share: sizes in pixels, how curves are told apart,
//! and how text is written.

/// Of the whole picture.
pub(super) const WIDTH: f64 = 960.0;
/// Free at the left of charts, for numbers, and at the right.
pub(super) const LEFT: f64 = 68.0;
pub(super) const RIGHT: f64 = 18.0;
/// The height of a chart's frame.
pub(super) const PLOT: f64 = 210.0;
/// Above and below the frame.
pub(super) const ABOVE: f64 = 30.0;
pub(super) const BELOW: f64 = 30.0;
/// Colours there are; runs beyond them are dashed.
pub(super) const COLOURS: usize = 8;

/// The radius of what marks a point.
pub(super) const DOT: f64 = 3.0;

/// A dash of curves that lie on each other, in pixels.
const TURN: usize = 12;

/// How the curve of a run is drawn: runs that share a colour differ in their dashes.
pub(super) fn of_run(number: usize) -> String {
    let dashes = match number / COLOURS % 4 {
        0 => "",
        1 => " stroke-dasharray=\"9 4\"",
        2 => " stroke-dasharray=\"2 3\"",
        _ => " stroke-dasharray=\"9 3 2 3\"",
    };
    format!("class=\"c{}\"{dashes}", number % COLOURS)
}

/// How the curve of a run is drawn that lies on others: one of so many that take turns along the way.
pub(super) fn in_turns(number: usize, turn: usize, among: usize) -> String {
    let (dash, gap) = (TURN, TURN * (among - 1));
    format!(
        "class=\"c{}\" stroke-dasharray=\"{dash} {gap}\" stroke-dashoffset=\"-{}\"",
        number % COLOURS,
        TURN * turn
    )
}

/// How that of what is held out is drawn: dashed, in the colour of its run where there are several,
/// and in a second one where there is no other to be taken for.
pub(super) fn held_out(number: usize, runs: usize) -> String {
    let colour = if runs == 1 { number + 1 } else { number };
    format!("class=\"c{}\" stroke-dasharray=\"6 5\"", colour % COLOURS)
}

/// Text as SVG has it. Characters that XML has not become the replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => {
                escaped.push('\u{fffd}');
            }
            c => escaped.push(c),
        }
    }
    escaped
}
