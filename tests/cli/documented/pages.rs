//! Lines of shell code in the pages.

use std::fs;
use std::path::{Path, PathBuf};

/// A command as typed: a line, or several of which all but the last end in `\`.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Its place, such as `README.md:12`.
    pub(super) place: String,
    pub(super) text: String,
    /// Number of its lines on the page.
    pub(super) height: usize,
}

/// A page with the commands of its shell code, in order.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

/// The repository.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README, CONTRIBUTING, the book, and the pages beside code and benchmarks.
pub(super) fn pages() -> Vec<Page> {
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from).into();
    for folder in ["book/src", "benches", "examples", "src"] {
        markdown(Path::new(folder), &mut paths);
    }
    paths.sort();
    let page = |path: &PathBuf| {
        let name = path.display().to_string();
        let text = fs::read_to_string(root().join(path)).unwrap();
        let lines = lines(&name, &text);
        Page { name, lines }
    };
    paths.iter().map(page).collect()
}

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            found.push(path);
        }
    }
}

/// Fenced code of a language, each with the number of its first line.
pub(super) fn blocks<'t>(text: &'t str, language: &str) -> Vec<(usize, Vec<&'t str>)> {
    let mut found = Vec::new();
    let mut open: Option<(bool, usize, Vec<&str>)> = None;
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        open = match (open.take(), fence) {
            (None, Some(kind)) => Some((kind.trim() == language, number + 2, Vec::new())),
            (Some((wanted, first, code)), Some(_)) => {
                found.extend(wanted.then_some((first, code)));
                None
            }
            (Some((wanted, first, mut code)), None) => {
                code.push(line);
                Some((wanted, first, code))
            }
            (None, None) => None,
        };
    }
    found
}

/// The commands of a page's shell code.
fn lines(name: &str, text: &str) -> Vec<Line> {
    for other in ["bash", "shell", "console"] {
        assert!(blocks(text, other).is_empty(), "{name}: `{other}` is `sh`");
    }
    let mut found: Vec<Line> = Vec::new();
    for (first, code) in blocks(text, "sh") {
        let mut joins = false;
        for (number, line) in (first..).zip(code) {
            if joins {
                let last = found.last_mut().unwrap();
                last.text.extend(["\n", line]);
                last.height += 1;
            } else if !line.trim().is_empty() {
                found.push(Line {
                    place: format!("{name}:{number}"),
                    text: line.trim_start().to_owned(),
                    height: 1,
                });
            }
            joins = line.ends_with('\\');
        }
    }
    found
}

#[test]
fn lines_that_end_in_a_backslash_are_one_command() {
    let page = "a\n```sh\nx \\\n  y    # z\n\nw\n```\n```text\nno\n```\n";
    let found: Vec<_> = lines("p", page)
        .into_iter()
        .map(|line| (line.place, line.text, line.height))
        .collect();
    let wanted = [("p:3", "x \\\n  y    # z", 2), ("p:6", "w", 1)];
    assert_eq!(
        found,
        wanted.map(|(place, text, height)| (place.to_owned(), text.to_owned(), height))
    );
}
