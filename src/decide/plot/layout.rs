//! Layout shared by charts and the picture: sizes in pixels, styles of curves, and text in SVG.

/// Width of the whole picture.
pub(super) const WIDTH: f64 = 960.0;
/// Margins of charts: left, for numbers, and right.
pub(super) const LEFT: f64 = 68.0;
pub(super) const RIGHT: f64 = 18.0;
/// Height of a chart's frame.
pub(super) const PLOT: f64 = 210.0;
/// Margins above and below the frame.
pub(super) const ABOVE: f64 = 30.0;
pub(super) const BELOW: f64 = 30.0;
/// Number of colours; further runs are dashed.
pub(super) const COLOURS: usize = 8;

/// Radius of the mark of a point.
pub(super) const DOT: f64 = 3.0;

/// Length of a dash of identical curves, in pixels.
const TURN: usize = 12;

/// Returns the style of a run's curve: runs that share a colour differ in their dashes.
pub(super) fn of_run(number: usize) -> String {
    let dashes = match number / COLOURS % 4 {
        0 => "",
        1 => " stroke-dasharray=\"9 4\"",
        2 => " stroke-dasharray=\"2 3\"",
        _ => " stroke-dasharray=\"9 3 2 3\"",
    };
    format!("class=\"c{}\"{dashes}", number % COLOURS)
}

/// Returns the style of a curve that is identical to others: the `turn`-th of `among` that alternate.
pub(super) fn in_turns(number: usize, turn: usize, among: usize) -> String {
    let (dash, gap) = (TURN, TURN * (among - 1));
    format!(
        "class=\"c{}\" stroke-dasharray=\"{dash} {gap}\" stroke-dashoffset=\"-{}\"",
        number % COLOURS,
        TURN * turn
    )
}

/// Returns the style of held-out data: dashed, in the colour of its run if there are several, else in
/// a second colour.
pub(super) fn held_out(number: usize, runs: usize) -> String {
    let colour = if runs == 1 { number + 1 } else { number };
    format!("class=\"c{}\" stroke-dasharray=\"6 5\"", colour % COLOURS)
}

/// Escapes text for SVG. Characters that XML forbids become the replacement character.
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
