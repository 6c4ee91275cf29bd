//! The pages as Markdown: code, links and headings.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One page of the book.
pub(crate) struct Page {
    /// File name, such as `files.md`.
    pub(crate) name: String,
    /// The full text.
    pub(crate) text: String,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The folder of the pages.
pub(crate) fn src() -> PathBuf {
    root().join("book/src")
}

/// Every page, `SUMMARY.md` too, by name.
pub(crate) fn all() -> Vec<Page> {
    let paths = fs::read_dir(src())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut pages: Vec<Page> = paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .map(|path| Page {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            text: fs::read_to_string(path).unwrap(),
        })
        .collect();
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(pages.len() > 30, "{} pages", pages.len());
    pages
}

/// The lines outside of code blocks.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The anchors that mdBook gives the headings of a page.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| {
        let level = line.chars().take_while(|&c| c == '#').count();
        (1..=6).contains(&level) && line[level..].starts_with(' ')
    });
    headings
        .map(|line| {
            let name = anchor(line.trim_start_matches('#').trim());
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            match *count {
                1 => name,
                many => format!("{name}-{}", many - 1),
            }
        })
        .collect()
}

/// Letters, digits, `-` and `_` of a heading in lower case, spaces as `-`.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// The targets of a page's links and pictures, including those in HTML.
pub(crate) fn targets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // A link may span lines, and code may contain similar text.
    let prose: Vec<&str> = prose(text).collect();
    let prose = prose.join("\n");
    let plain: String = prose.split('`').step_by(2).collect::<Vec<_>>().join("`");
    for (begin, end) in [
        ("](", ')'),
        ("src=\"", '"'),
        ("srcset=\"", '"'),
        ("href=\"", '"'),
    ] {
        let parts = plain.split(begin).skip(1);
        found.extend(parts.filter_map(|part| Some(part.split_once(end)?.0.to_owned())));
    }
    found
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# A `b.c` -- d\n[x](y.md#z) `[no](no.md)`\n```\n[no](no.md)\n# no\n```\n## Two\n## Two\n<img src=\"p.svg\">\n";
    assert_eq!(anchors(page), ["a-bc----d", "two", "two-1"]);
    assert_eq!(targets(page), ["y.md#z", "p.svg"]);
}
