//! Checks that no link of the book, of the README or of the benchmarks' pages is dead.

use std::fs;
use std::path::Path;

use crate::pages::{all, anchors, root, src, targets};

/// Returns the reason why a link from a page in `folder` is dead, if it is.
fn dead(folder: &Path, own: &str, target: &str) -> Option<String> {
    if target.starts_with("https://") {
        return None;
    }
    if target.contains("://") || target.starts_with('/') {
        return Some("neither https nor relative".to_owned());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = folder.join(file);
    if !file.is_empty() && !path.exists() {
        return Some("there is no such file".to_owned());
    }
    if anchor.is_empty() {
        return None;
    }
    let text = if file.is_empty() {
        own.to_owned()
    } else {
        fs::read_to_string(path).unwrap()
    };
    let known = anchors(&text);
    let missing = !known.iter().any(|name| name == anchor);
    missing.then(|| format!("there is no such heading, but {}", known.join(", ")))
}

#[track_caller]
fn check(name: &str, folder: &Path, text: &str) -> usize {
    let targets = targets(text);
    for target in &targets {
        if let Some(why) = dead(folder, text, target) {
            panic!("{name}: the link to `{target}` is dead: {why}");
        }
    }
    targets.len()
}

#[test]
fn no_link_is_dead() {
    let mut links = 0;
    for page in all() {
        links += check(&page.name, &src(), &page.text);
    }
    for name in ["README.md", "benches/README.md", "benches/peers/README.md"] {
        let path = root().join(name);
        let text = fs::read_to_string(&path).unwrap();
        links += check(name, path.parent().unwrap(), &text);
    }
    assert!(links > 100, "{links}");
}

/// Regression test: the playground's form had the same id as the page's heading, so its script found the
/// heading.
#[test]
fn no_identity_is_that_of_a_heading() {
    for page in all() {
        let (name, anchors) = (&page.name, anchors(&page.text));
        for part in page.text.split("id=\"").skip(1) {
            let id = part.split('"').next().unwrap();
            assert!(!anchors.iter().any(|own| own == id), "{name}: {id}");
        }
    }
}

/// Links within the book must point to files that mdBook builds.
#[test]
fn pages_link_to_pages_and_pictures_alone() {
    for page in all() {
        let inside = |target: &&String| !target.starts_with("https://") && !target.starts_with('#');
        for target in targets(&page.text).iter().filter(inside) {
            assert!(
                !target.starts_with(".."),
                "{}: `{target}` is not in the book that is built: name the file as code",
                page.name
            );
        }
    }
}

#[test]
fn every_page_is_in_the_summary_once_and_is_tested() {
    let pages = all();
    let summary = fs::read_to_string(src().join("SUMMARY.md")).unwrap();
    let tested = fs::read_to_string(root().join("book/lib.rs")).unwrap();
    let listed = targets(&summary);
    for page in pages.iter().filter(|page| page.name != "SUMMARY.md") {
        let times = listed.iter().filter(|target| **target == page.name).count();
        assert_eq!(times, 1, "{} in SUMMARY.md", page.name);
        let code = page.text.contains("```rust");
        let included = tested.contains(&format!("include_str!(\"src/{}\")", page.name));
        assert!(
            included || !code,
            "{} has Rust code that book/lib.rs does not test",
            page.name
        );
        let lines = page.text.lines().count();
        assert!(
            lines <= 300 || page.name == "cli.md",
            "{} has {lines} lines",
            page.name
        );
    }
}

/// Readers do not find a page through the table of contents alone.
#[test]
fn every_page_is_linked_from_another() {
    let pages = all();
    let pages = pages.iter().filter(|page| page.name != "SUMMARY.md");
    for page in pages.clone() {
        let leads_here = |target: String| target.split('#').next() == Some(page.name.as_str());
        let linked = pages
            .clone()
            .filter(|other| other.name != page.name && other.name != "introduction.md")
            .any(|other| targets(&other.text).into_iter().any(leads_here));
        assert!(
            linked || page.name == "introduction.md",
            "no page but the introduction links to {}",
            page.name
        );
    }
}

/// A reader who follows a link must learn first whether the page is the right one.
#[test]
fn every_page_begins_with_a_sentence() {
    for page in all().iter().filter(|page| page.name != "SUMMARY.md") {
        let mut lines = page.text.lines().filter(|line| !line.is_empty());
        assert!(lines.next().unwrap().starts_with("# "), "{}", page.name);
        let first = lines.next().unwrap();
        let other = ["#", "```", "|", "-", "<", ">"];
        assert!(
            !other.iter().any(|begin| first.starts_with(begin)),
            "{} begins with {first}",
            page.name
        );
    }
}

/// The page's title must match its entry in the table of contents.
#[test]
fn every_page_has_the_title_of_the_summary() {
    let summary = fs::read_to_string(src().join("SUMMARY.md")).unwrap();
    for page in all().iter().filter(|page| page.name != "SUMMARY.md") {
        let title = page.text.lines().next().unwrap().trim_start_matches("# ");
        let entry = format!("[{title}]({})", page.name);
        assert!(summary.contains(&entry), "SUMMARY.md lacks {entry}");
    }
}

#[test]
fn every_link_can_be_dead() {
    let here = src();
    assert!(dead(&here, "# A\n", "#a").is_none());
    assert!(dead(&here, "# A\n", "#b").is_some());
    assert!(dead(&here, "", "files.md#planjson").is_none());
    assert!(dead(&here, "", "files.md#plan").is_some());
    assert!(dead(&here, "", "no-such-page.md").is_some());
    assert!(dead(&here, "", "http://example.org").is_some());
}
