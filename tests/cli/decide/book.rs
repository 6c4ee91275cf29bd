//! Runs the commands of the book's pages about planning, and compares the shown output with the printed one.

use std::fs;
use std::path::Path;

use crate::run::command;

/// The code blocks of a page: language and lines.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some((_, code)), None) => code.extend([line, "\n"]),
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (None, None) => {}
        }
    }
    all
}

/// The commands of a block, with continued lines joined.
fn commands(code: &str) -> Vec<Vec<String>> {
    let code = code.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let lines = code.lines().map(words);
    let own = |words: &Vec<String>| words.first().is_some_and(|first| first == "gpipe-rs");
    lines.filter(own).collect()
}

/// Checks that the output has these lines in this order; `…` matches any number of lines.
#[track_caller]
fn assert_shown(shown: &str, output: &str, command: &str) {
    let mut rest = output.lines();
    for line in shown.lines().filter(|line| line.trim() != "…") {
        let found = rest.any(|own| own.trim_end() == line.trim_end());
        assert!(
            found,
            "`{command}` does not print, or not there:\n{line}\n\n{output}"
        );
    }
}

/// Runs a page's commands that need no device and no file of the reader, and compares the output shown below
/// each. Returns the numbers of commands run and of outputs shown.
#[track_caller]
fn check(page: &str) -> (usize, usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("book/src").join(page)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("examples"), folder.path().join("examples")).unwrap();
    let (mut run, mut shown) = (0, 0);
    let mut last = None;
    for (language, code) in blocks(&page) {
        match language.as_str() {
            "toml" => fs::write(folder.path().join("cluster.toml"), &code).unwrap(),
            "sh" => {
                for words in commands(&code) {
                    last = None;
                    let decides = ["plan", "simulate", "schedule"].contains(&&*words[1]);
                    if !decides || words.iter().any(|word| word == "profile.json") {
                        continue;
                    }
                    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
                    let mut own = command(folder.path(), &args);
                    let output = own.env("COLUMNS", "100").output().unwrap();
                    let text = [output.stdout, output.stderr].concat();
                    let text = String::from_utf8(text).unwrap();
                    // A machine on which nothing fits is not wrong use.
                    assert!(
                        matches!(output.status.code(), Some(0 | 1)),
                        "{words:?}\n{text}"
                    );
                    run += 1;
                    last = Some((words.join(" "), text));
                }
            }
            "text" => {
                if let Some((command, output)) = &last {
                    assert_shown(&code, output, command);
                    shown += 1;
                }
            }
            _ => {}
        }
    }
    (run, shown)
}

#[test]
fn a_cluster_is_planned_as_its_page_shows() {
    let (run, shown) = check("plan-a-cluster.md");
    assert!(run >= 8 && shown >= 4, "{run} {shown}");
}

#[test]
fn schedules_are_compared_as_their_page_shows() {
    let (run, shown) = check("choose.md");
    assert!(run >= 8 && shown >= 1, "{run} {shown}");
}

#[test]
fn a_profile_is_planned_as_its_page_shows() {
    let (run, shown) = check("planning.md");
    assert!(run >= 1 && shown >= 1, "{run} {shown}");
}

/// Regression test: the page described an outdated plan.
#[test]
fn what_does_not_fit_one_card_is_planned_as_its_page_shows() {
    let (run, shown) = check("does-not-fit.md");
    assert!(run >= 3 && shown >= 3, "{run} {shown}");
}
