//! Checks that every command in the pages, or in a message of the program, works as written.
//!
//! The shell code of each page is run in a folder like a clone, in the page's order, so that a line finds the
//! files of those before it. `gpipe-rs` is the command that cargo built for the tests, with small sizes; the
//! reader's own files are supplied (`given.rs`). Lines that need a network, a GPU or an hour are checked as
//! far as possible without: `documented.toml` lists them with the reasons.

mod checked;
mod given;
mod hints;
mod list;
mod pages;
mod place;

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use given::Given;
use list::{How, List};
use pages::{Line, Page};
use place::Place;

/// Least percentage of the lines of README, CONTRIBUTING, book and messages that must run. Most lines of the
/// benchmark pages take an hour.
const RUN: usize = 90;

/// Outcome of lines, counted as they stand in the page.
#[derive(Debug, Default)]
struct Told {
    run: usize,
    by_ci: usize,
    checked: usize,
    failed: Vec<String>,
}

/// `DOCUMENTED=use.md` checks this page alone.
#[test]
fn every_documented_command_works() {
    let list = List::read();
    let given = Given::new(&list.given, &list.small);
    let only = std::env::var("DOCUMENTED").unwrap_or_default();
    let mut pages: Vec<Page> = pages::pages();
    pages.push(hints::hints(&list.fill));
    pages.retain(|page| !page.lines.is_empty() && page.name.contains(&only));
    // Sorts the longest last: pages are taken from the end.
    pages.sort_by_key(|page| page.lines.len());
    let (pages, told) = (
        Mutex::new(pages),
        Mutex::new([Told::default(), Told::default()]),
    );
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(page) = pages.lock().unwrap().pop() else {
                        return;
                    };
                    walk(&page, &list, &given, &told);
                }
            });
        }
    });
    let told = told.into_inner().unwrap();
    let failed: Vec<_> = told.iter().flat_map(|told| &told.failed).cloned().collect();
    let [share, _] = told.map(|told| {
        let (run, all) = (told.run + told.by_ci, told.run + told.by_ci + told.checked);
        println!(
            "{all} lines: {} are run here, {} by .ci/run; {} are checked only",
            told.run, told.by_ci, told.checked
        );
        run * 100 / all.max(1)
    });
    assert!(failed.is_empty(), "\n{}", failed.join("\n\n"));
    if only.is_empty() && place::has_gpus() {
        list.told();
        assert!(share >= RUN, "{share} %");
    }
}

/// Goes through the lines of a page.
fn walk(page: &Page, list: &List, given: &Given, told: &Mutex<[Told; 2]>) {
    let beside = usize::from(page.name.contains("/README"));
    let mut place = Place::new(&list.small);
    for (number, line) in page.lines.iter().enumerate() {
        let start = Instant::now();
        let how = list
            .of(line)
            .map_or(&How::Ends(0), |exception| &exception.how);
        let how = match how {
            How::Ends(_) if place::wants_gpus(&line.text) && !place::has_gpus() => &How::Checked,
            How::Needs(program) if place.has(program) => &How::Ends(0),
            How::Needs(_) => &How::Checked,
            other => other,
        };
        let done = match how {
            How::Ends(code) => place.run(line, given, *code),
            How::Ci => by_ci(line),
            How::Needs(_) | How::Checked => checked::checked(&place, line, &page.lines[..number]),
        };
        let took = start.elapsed().as_secs_f64();
        println!("{took:6.1} s  {}: {}", line.place, line.text);
        let told = &mut told.lock().unwrap()[beside];
        match (done, how) {
            (Err(error), _) => {
                let failed = format!("{}: {}\n{error}", line.place, line.text);
                println!("{failed}");
                told.failed.push(failed);
            }
            (Ok(()), How::Ends(_)) => told.run += line.height,
            (Ok(()), How::Ci) => told.by_ci += line.height,
            (Ok(()), How::Needs(_) | How::Checked) => told.checked += line.height,
        }
    }
}

/// Checks that `.ci/run` runs a line: it names those that are not in the README's first block.
fn by_ci(line: &Line) -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(pages::root().join(path)).unwrap();
    let command = line.text.split(" #").next().unwrap().trim_end();
    let readme = read("README.md");
    let (_, first) = pages::blocks(&readme, "sh").remove(0);
    let in_first = first
        .iter()
        .any(|line| line.split(" #").next().unwrap().trim_end() == command);
    if in_first || read(".ci/run").contains(&format!("timed '{command}'")) {
        Ok(())
    } else {
        Err(".ci/run does not run it".to_owned())
    }
}
