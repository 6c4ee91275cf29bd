//! Checks of the text of any page.
// Each test file uses its own part.
#![allow(dead_code)]

use std::collections::HashSet;

/// Elements without an end tag.
const VOID: [&str; 5] = ["meta", "link", "br", "img", "input"];

/// A start tag.
struct Tag<'a> {
    name: &'a str,
    text: &'a str,
}

impl<'a> Tag<'a> {
    fn attribute(&self, name: &str) -> Option<&'a str> {
        let begin = self.text.find(&format!(" {name}=\""))? + name.len() + 3;
        self.text[begin..].split('"').next()
    }
}

/// Returns the start tags; checks that each end tag ends the element opened last.
fn tags(page: &str) -> Vec<Tag<'_>> {
    let (mut open, mut tags, mut rest) = (Vec::new(), Vec::new(), page);
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let text = &rest[begin + 1..end];
        let name = text.split([' ', '/', '\n']).next().unwrap();
        rest = &rest[end + 1..];
        if let Some(closed) = text.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "</{closed}>");
        } else if !text.starts_with('!') {
            tags.push(Tag { name, text });
            if name == "script" || name == "style" {
                let end = format!("</{name}>");
                rest = &rest[rest.find(&end).unwrap() + end.len()..];
            } else if !text.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    tags
}

/// Checks the invariants of every page: it nests, loads nothing, names its pictures and tables, and
/// its links have targets.
pub(crate) fn check(page: &str) {
    let tags = tags(page);
    let mut ids = HashSet::new();
    for id in tags.iter().filter_map(|tag| tag.attribute("id")) {
        assert!(ids.insert(id), "two elements are #{id}");
    }
    let named = ["aria-labelledby", "aria-describedby"];
    for tag in &tags {
        if let Some(target) = tag
            .attribute("href")
            .and_then(|href| href.strip_prefix('#'))
        {
            assert!(ids.contains(target), "no #{target}");
        }
        for target in named.iter().filter_map(|name| tag.attribute(name)) {
            assert!(ids.contains(target), "no #{target}");
        }
        for loading in ["src", "srcset", "data", "action"] {
            assert_eq!(tag.attribute(loading), None, "{}", tag.text);
        }
    }
    let count = |name: &str| tags.iter().filter(|tag| tag.name == name).count();
    assert_eq!(count("h1"), 1);
    assert_eq!(count("main"), 1);
    assert_eq!(count("caption"), count("table"));
    let seen = |tag: &&Tag| tag.name == "svg" && tag.attribute("aria-hidden").is_none();
    assert_eq!(count("desc"), tags.iter().filter(seen).count());
    let uses: HashSet<&str> = page
        .split("url(#")
        .skip(1)
        .filter_map(|u| u.split(')').next())
        .collect();
    assert!(uses.iter().all(|pattern| ids.contains(pattern)), "{uses:?}");
    for svg in tags.iter().filter(seen) {
        assert_eq!(svg.attribute("role"), Some("img"));
        assert!(
            svg.attribute("aria-label")
                .is_some_and(|label| !label.is_empty())
        );
    }
    let addresses = page.matches("://").count();
    let namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
    assert_eq!(addresses, page.matches(namespace).count(), "an address");
    assert!(!page.contains("@import") && !page.contains("url(") || !outside(page));
    assert!(page.contains("lang=\"en\"") && page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("NaN").eq(&false) && !page.contains(">inf"));
}

/// Whether a style refers to anything outside the page.
fn outside(page: &str) -> bool {
    page.contains("@import") || page.matches("url(").count() != page.matches("url(#").count()
}

/// Returns the part between the title and the script, without the style.
pub(crate) fn content(page: &str) -> &str {
    let begin = page.find("<header>").unwrap();
    let end = page.find("<footer>").unwrap();
    &page[begin..end]
}
