//! Output of data, and the width of a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use gpipe_partitioner::words;

use super::{Failure, say};
use gpipe_partitioner::files;

/// Width if it is unknown, in columns.
const WIDTH: usize = 100;

/// Writes data to a file, or to standard output for none or `-`.
pub fn write(target: Option<&Path>, data: &str) -> Result<(), Failure> {
    match target.filter(|path| *path != Path::new("-")) {
        Some(path) => write_bytes(path, data.as_bytes()),
        None => print(data),
    }
}

/// Writes data to a file.
pub(crate) fn write_bytes(path: &Path, data: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, data).with_context(|| format!("{} cannot be written", path.display()))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}

/// Checks early that files can be written at the end.
pub fn writable(path: &Path) -> Result<(), String> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    match folder {
        _ if path.is_dir() => Err("this is a folder; give a file in it".to_owned()),
        Some(folder) if !folder.is_dir() => Err(format!(
            "there is no folder {}; make it first",
            folder.display()
        )),
        _ => files::check_can_write(path).map_err(|error| format!("it cannot be written: {error}")),
    }
}

/// Escapes characters that would control a terminal: control characters except line ends and tabs,
/// and those that change the direction of writing. Names in files may contain them.
///
/// They are escaped as in JSON, so JSON keeps its meaning.
pub fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| !matches!(c, '\n' | '\t') && words::steers(c);
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            // Writing to a string cannot fail.
            let _ = write!(plain, "\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

/// Writes data to standard output; a reader that has closed it is no error.
pub fn print(data: &str) -> Result<(), Failure> {
    let data = plain(data);
    let mut out = std::io::stdout().lock();
    match out.write_all(data.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::Error::from(error)
            .context("cannot write to standard output")
            .into()),
        _ => Ok(()),
    }
}

/// Formats a number as `1,557,611,200`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a JSON value as one line.
pub fn json(value: &serde_json::Value) -> String {
    format!("{value}\n")
}

/// Returns the width of text for `target`: that of the terminal, else the environment's `COLUMNS`,
/// else 100 columns.
pub fn width(target: Option<&Path>) -> usize {
    let to_terminal = target.is_none() && std::io::stdout().is_terminal();
    let terminal = terminal_size::terminal_size().filter(|_| to_terminal);
    let named = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    terminal
        .map(|(width, _)| usize::from(width.0))
        .or_else(named)
        .filter(|&width| width > 0)
        .unwrap_or(WIDTH)
}

/// Breaks text into lines of at most `width` columns; longer words get lines of their own, and line
/// breaks stay. A command in backticks is one word: half of it must not look like a whole one.
pub fn wrapped(text: &str, width: usize) -> String {
    let lines: Vec<String> = text.lines().map(|line| broken(line, width)).collect();
    lines.join("\n")
}

/// Returns the columns of a word; escape sequences (`ESC [ ... m`) take none.
fn shown(word: &str) -> usize {
    let mut steers = false;
    let mut count = 0;
    for c in word.chars() {
        match c {
            '\u{1b}' => steers = true,
            'm' if steers => steers = false,
            _ if steers => {}
            _ => count += 1,
        }
    }
    count
}

/// Returns the words of a line. Text between two backticks belongs to one word.
fn words_of(line: &str) -> Vec<&str> {
    let (mut words, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        match c {
            '`' => inside = !inside && line[at + 1..].contains('`'),
            ' ' if !inside => {
                words.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&line[start..]);
    words
}

fn broken(line: &str, width: usize) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for (number, word) in words_of(line).into_iter().enumerate() {
        let wide = shown(word);
        if number > 0 {
            let fits = column + 1 + wide <= width;
            text.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        text.push_str(word);
        column += wide;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(thousands(1_557_611_200), "1,557,611,200");
    }

    #[test]
    fn what_steers_a_terminal_is_written_as_json_writes_it() {
        let name = "a\u{1b}]0;x\u{7}\u{202e}\u{9b}\r\u{7f}z";
        let shown = plain(name);
        assert_eq!(shown, "a\\u001b]0;x\\u0007\\u202e\\u009b\\u000d\\u007fz");
        let same: String = serde_json::from_str(&format!("\"{shown}\"")).unwrap();
        assert_eq!(same, name);
        for text in ["", "one\ttwo\n", "W\u{e4}l, \u{3b1} \u{1f40b} \u{5d0}"] {
            assert!(matches!(plain(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn lines_are_broken_between_words_and_stay_within_the_width() {
        assert_eq!(wrapped("one two three", 7), "one two\nthree");
        assert_eq!(wrapped("one two\nthree", 80), "one two\nthree");
        assert_eq!(wrapped("a verylongword b", 5), "a\nverylongword\nb");
        assert_eq!(wrapped("  two blanks", 12), "  two blanks");
        assert_eq!(wrapped("µµ µµ", 5), "µµ µµ");
        // Regression: half of a command was copied.
        assert_eq!(wrapped("a `b c d`, e", 5), "a\n`b c d`,\ne");
        assert_eq!(wrapped("a` b c", 4), "a` b\nc");
        let red = "\u{1b}[31mone\u{1b}[0m two three";
        assert_eq!(wrapped(red, 7), "\u{1b}[31mone\u{1b}[0m two\nthree");
    }
}
