//! Checks that every file, target, test, benchmark and example named in the book exists.

use std::fs;

use crate::pages::{all, prose, root};

/// The repository's code folders, as paths in the book begin.
const FOLDERS: [&str; 7] = [
    "src/",
    "partitioner/",
    "tests/",
    "examples/",
    "benches/",
    "book/",
    ".ci/",
];

/// Paths that a command creates.
const MADE: [&str; 1] = ["book/book"];

/// The code spans of a page, and the words of its shell code.
fn spans(text: &str) -> Vec<String> {
    let prose: Vec<&str> = prose(text).collect();
    let prose = prose.join(" ");
    prose
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_path_exists() {
    let mut seen = 0;
    for page in all() {
        for span in spans(&page.text) {
            let is_path = FOLDERS.iter().any(|folder| span.starts_with(folder));
            if !is_path || span.contains(' ') || span.contains('*') || MADE.contains(&&*span) {
                continue;
            }
            seen += 1;
            assert!(
                root().join(&span).exists(),
                "{}: there is no `{span}`",
                page.name
            );
        }
    }
    assert!(seen > 100, "{seen}");
}

/// The word after `flag` in each of a page's lines.
fn behind<'t>(text: &'t str, flag: &str) -> Vec<&'t str> {
    let parts = text.split(flag).skip(1);
    let word = |part: &'t str| {
        let end = part.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
        &part[..end.unwrap_or(part.len())]
    };
    parts.map(word).filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_make_target_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut seen = 0;
    for page in all() {
        for target in behind(&page.text, "`make ")
            .into_iter()
            .chain(behind(&page.text, "\nmake "))
        {
            seen += 1;
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "{}: `make {target}`", page.name);
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn every_benchmark_example_and_test_that_is_run_exists() {
    let mut seen = 0;
    for page in all() {
        for (flag, folder) in [
            ("--bench ", "benches"),
            ("--example ", "examples"),
            ("--test ", "tests"),
        ] {
            for name in behind(&page.text, flag) {
                seen += 1;
                let places = [
                    format!("{folder}/{name}.rs"),
                    format!("{folder}/{name}/main.rs"),
                    format!("partitioner/{folder}/{name}.rs"),
                    format!("book/{folder}/{name}/main.rs"),
                    format!("src/engine/{folder}/{name}/main.rs"),
                ];
                let there = places.iter().any(|place| root().join(place).exists());
                assert!(there, "{}: {flag}{name}", page.name);
            }
        }
    }
    assert!(seen > 5, "{seen}");
}
