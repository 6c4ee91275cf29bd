//! Errors of `serde` as field and rule, in the style of this program's other messages.

use serde_path_to_error::{Path, Segment};

/// Most characters of a rule, which may repeat text of the file.
const LONGEST_RULE: usize = 600;

/// Returns field and rule of an error at `path`.
pub(super) fn of(path: &Path, error: &serde_json::Error) -> (String, String) {
    let field = spelt(path);
    let text = error.to_string();
    if error.is_eof() {
        let what = if error.line() == 1 && error.column() == 0 {
            "is empty".to_owned()
        } else {
            format!(
                "is cut off: it ends in the midst of its JSON, on line {}",
                error.line()
            )
        };
        return (field, what);
    }
    if error.is_syntax() {
        return (field, format!("is not JSON ({text})"));
    }
    // The field gives the place: line and column add nothing.
    let at = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&at).unwrap_or(&text);
    let within = |name: &str| match field.as_str() {
        "" => shorten(name),
        path => format!("{path}.{}", shorten(name)),
    };
    let (field, rule) = if let Some(name) = quoted(text, "missing field `") {
        (within(name), "is missing".to_owned())
    } else if let Some(name) = quoted(text, "duplicate field `") {
        (within(name), "is given twice".to_owned())
    } else if text.starts_with("unknown field `") {
        let known = text.rsplit_once("expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ").replace('`', "");
        (field, format!("is not a field here; there are {known}"))
    } else if let Some((found, expected)) = mismatch(text) {
        (field, format!("must be {expected}, is {}", named(found)))
    } else {
        (field, text.to_owned())
    };
    (field, cut(&rule, LONGEST_RULE))
}

/// Formats a path, such as `layers[3].forward_us`.
fn spelt(path: &Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => text.extend(["[", &index.to_string(), "]"]),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                let dot = if text.is_empty() { "" } else { "." };
                text.push_str(dot);
                text.push_str(&shorten(key));
            }
            Segment::Unknown => {}
        }
    }
    text
}

/// Returns the name after `lead`, up to the backquote that ends the text.
fn quoted<'a>(text: &'a str, lead: &str) -> Option<&'a str> {
    text.strip_prefix(lead)?.strip_suffix('`')
}

/// Splits a message into the value found and the value expected.
fn mismatch(text: &str) -> Option<(&str, &str)> {
    let lead = ["invalid type: ", "invalid value: "];
    let rest = lead.iter().find_map(|lead| text.strip_prefix(lead))?;
    rest.rsplit_once(", expected ")
}

/// Shortens `serde`'s description of a value.
fn named(found: &str) -> String {
    let bare = |lead: &str| found.strip_prefix(lead).map(|rest| rest.trim_matches('`'));
    let scalars = ["integer ", "floating point ", "boolean "];
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        _ => match scalars.into_iter().find_map(bare) {
            Some(scalar) => scalar.to_owned(),
            None => match found.strip_prefix("string ") {
                Some(text) => {
                    let text = text.trim_matches('"');
                    format!("the text \"{}\"", shorten(text))
                }
                None => found.to_owned(),
            },
        },
    }
}

/// Returns at most 40 characters of a text, without control characters.
pub(crate) fn shorten(text: &str) -> String {
    cut(text, 40)
}

fn cut(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        short.push('…');
    }
    short
}
