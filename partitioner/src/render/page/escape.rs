//! Names from outside as HTML's text.

/// `text` with nothing in it that HTML or SVG would take for its own.
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

/// A sentence as HTML: what stands between backticks is code, and so are flags, which no line breaks;
/// apostrophes are those of the pages.
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

/// HTML with each flag in an element of that name, so that no line ends at its hyphens.
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

/// The same of a sentence that stands alone: it begins with a capital and ends with a full stop.
pub(in crate::render) fn whole_sentence(text: &str) -> String {
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    sentence(&format!("{}{end}", capital(text)))
}

/// A text whose first letter is a capital.
pub(in crate::render) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

/// What stands behind a number, with a space between them.
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

/// HTML with no-break spaces between numbers and their units: a line may end anywhere else.
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

/// The most characters of a name where it stands in a table.
const LONGEST: usize = 64;

/// A name as HTML: one that is too long for a table loses its middle, and says the
/// whole of it when pointed at.
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

    /// Lines ended behind the hyphens: `a smaller --` and `batch`.
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

    /// `144.98` and `ms` stood in two lines.
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
