//! External text as HTML.

/// Escapes characters with a meaning in HTML or SVG.
pub(in crate::render) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Converts a sentence to HTML: text between backticks becomes code, and so do flags, which no line
/// breaks; apostrophes become typographic.
pub(in crate::render) fn sentence(text: &str) -> String {
    let text = text.replace("'s ", "\u{2019}s ");
    let parts: Vec<String> = text.split('`').map(escaped).collect();
    if parts.len().is_multiple_of(2) {
        return flags(&parts.join("`"), "code");
    }
    let part = |(number, part): (usize, &String)| match number % 2 {
        0 => flags(part, "code"),
        _ => format!("<code>{}</code>", flags(part, "span")),
    };
    parts.iter().enumerate().map(part).collect()
}

/// Puts each flag into an element of that name, so that no line breaks at its hyphens.
fn flags(html: &str, element: &str) -> String {
    let is_of_flag = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut all = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find("--") {
        let (before, flag) = rest.split_at(at);
        let end = flag.find(|c| !is_of_flag(c)).unwrap_or(flag.len());
        let (flag, behind) = flag.split_at(end);
        let stands_alone = !before.ends_with(is_of_flag);
        all.push_str(before);
        if stands_alone && flag.len() > 2 {
            all.extend(["<", element, " class=\"flag\">", flag, "</", element, ">"]);
        } else {
            all.push_str(flag);
        }
        rest = behind;
    }
    all + rest
}

/// Same as `sentence`, for a sentence that stands alone: with a capital and a full stop.
pub(in crate::render) fn whole_sentence(text: &str) -> String {
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    sentence(&format!("{}{end}", capital(text)))
}

/// Capitalizes the first letter.
pub(in crate::render) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

/// Units after a number, separated by a space.
const UNITS: [&str; 14] = [
    "%",
    "µs",
    "ms",
    "s",
    "min",
    "h",
    "d",
    "B",
    "KiB",
    "MiB",
    "GiB",
    "TiB",
    "samples/s",
    "GB/s",
];

/// Puts no-break spaces between numbers and their units: a line may break anywhere else.
pub(in crate::render) fn bound(html: &str) -> String {
    let ends = |c: char| c.is_whitespace() || ",.;:()<".contains(c);
    let mut pieces = html.split(' ');
    let mut bound = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let unit = piece.split(ends).next().unwrap_or_default();
        let is_bound = bound.ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit);
        bound.push(if is_bound { '\u{a0}' } else { ' ' });
        bound.push_str(piece);
    }
    bound
}

/// Most characters of a name in a table.
const LONGEST: usize = 64;

/// Returns a name as HTML: one that is too long for a table loses its middle, and shows the whole
/// when pointed at.
pub(in crate::render) fn name(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return escaped(text);
    }
    let half = LONGEST / 2 - 1;
    let begin: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!(
        "<span title=\"{}\">{}\u{2026}{}</span>",
        escaped(text),
        escaped(&begin),
        escaped(&end)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_are_code_where_they_close() {
        assert_eq!(sentence("a `b<` c"), "a <code>b&lt;</code> c");
        assert_eq!(sentence("a ` b"), "a ` b");
        assert_eq!(sentence("stage 0's 'x'"), "stage 0\u{2019}s &#39;x&#39;");
        assert_eq!(sentence("`a` `b`"), "<code>a</code> <code>b</code>");
        assert_eq!(whole_sentence("a `b`"), "A <code>b</code>.");
        assert_eq!(whole_sentence("`a` it is."), "<code>a</code> it is.");
    }

    /// Regression: lines broke after the hyphens: `a smaller --` and `batch`.
    #[test]
    fn flags_are_code_that_no_line_breaks() {
        assert_eq!(
            sentence("a smaller --batch, --tensor-parallel auto"),
            "a smaller <code class=\"flag\">--batch</code>, \
             <code class=\"flag\">--tensor-parallel</code> auto"
        );
        assert_eq!(
            sentence("`gpipe-rs train --plan p.json`"),
            "<code>gpipe-rs train <span class=\"flag\">--plan</span> p.json</code>"
        );
        for none in ["a -- b", "a--b", "--", "-o plan.json"] {
            assert_eq!(sentence(none), none);
        }
    }

    /// Regression: `144.98` and `ms` were on two lines.
    #[test]
    fn a_number_keeps_its_unit() {
        let html = "<dd>144.98 ms</dd> of 3.0 µs, 92 %; in 2 steps a day";
        let wanted = "<dd>144.98~ms</dd> of 3.0~µs, 92~%; in 2 steps a day";
        assert_eq!(bound(html).replace('\u{a0}', "~"), wanted);
        assert_eq!(bound(""), "");
    }

    #[test]
    fn long_names_keep_both_ends_and_say_the_whole() {
        let long = format!("a<{}>z", "x".repeat(100));
        let html = name(&long);
        assert!(html.contains(">a&lt;xxx") && html.contains("xxx&gt;z</span>"));
        assert!(html.starts_with("<span title=\"a&lt;") && !html.contains("a<x"));
        assert_eq!(name("head"), "head");
    }
}
