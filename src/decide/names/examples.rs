//! Examples below the help texts.

use clap::Command;
use clap::builder::StyledStr;

/// Breaks the examples to fit a terminal of 80 columns, such that they can be pasted from there.
pub(super) fn exemplary(verb: Command) -> Command {
    rewritten(verb, |text| {
        let lines: Vec<String> = text.lines().map(broken).collect();
        lines.join("\n")
    })
}

/// Rewrites the texts below the short and the long help.
pub fn rewritten(verb: Command, write: impl Fn(&str) -> String) -> Command {
    let other = |text: &StyledStr| write(&text.to_string());
    let short = verb.get_after_help().map(other);
    let long = verb.get_after_long_help().map(other);
    let verb = match short {
        Some(short) => verb.after_help(short),
        None => verb,
    };
    match long {
        Some(long) => verb.after_long_help(long),
        None => verb,
    }
}

/// Breaks a long command before a flag, with a backslash.
fn broken(line: &str) -> String {
    const WIDTH: usize = 78;
    if !line.starts_with("  ") || line.len() <= WIDTH + 2 {
        return line.to_owned();
    }
    let (mut text, mut column) = (String::new(), 0);
    // A part begins with a flag, or with `&&` or `>`.
    let parts = [" -", " && ", " > "];
    let begins = |at: &usize| parts.iter().any(|part| line[*at..].starts_with(part));
    let mut places: Vec<usize> = line
        .match_indices(' ')
        .map(|(at, _)| at)
        .filter(begins)
        .collect();
    places.push(line.len());
    let mut from = 0;
    for to in places {
        let part = &line[from..to];
        if column > 0 && column + part.len() > WIDTH {
            text += " \\\n     ";
            column = 5;
        }
        text += part;
        column += part.len();
        from = to;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_example_goes_on_before_a_flag() {
        let line = format!("  gpipe-rs train --one {} --two b -o c", "a".repeat(50));
        let lines: Vec<String> = broken(&line).lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "      --two b -o c");
        assert!(lines[0].ends_with("aaa \\") && lines[0].len() <= 80);
        assert_eq!(broken("  gpipe-rs env"), "  gpipe-rs env");
        // clap breaks after the `>`, where the shell takes it for the end.
        let line = format!("  gpipe-rs completions bash > ~/{}", "a".repeat(60));
        assert!(broken(&line).contains("bash \\\n      > ~/aaa"));
    }
}
