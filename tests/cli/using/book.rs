//! Checks that every printed field is in the book.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::printed;
use super::trained::run;

#[track_caller]
fn documented(verb: &str, flags: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/files.md");
    let page = fs::read_to_string(page).unwrap();
    let heading = format!("## `{verb} --json`\n");
    let section = page.split_once(&heading).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let text = printed(run(), &format!("{verb} --run run --json {flags}"));
    let object: Map<String, Value> = serde_json::from_str(&text).unwrap();
    for field in object.keys() {
        assert!(
            section.contains(&format!("\n| `{field}` |")),
            "{verb}: {field}"
        );
    }
    assert_eq!(section.matches("\n| `").count(), object.len(), "{verb}");
}

#[test]
fn every_field_is_in_the_book() {
    let folder = tempfile::tempdir().unwrap();
    documented("eval", "");
    documented("generate", "--prompt Call --tokens 2");
    documented("export", &format!("-o {}", folder.path().display()));
}
