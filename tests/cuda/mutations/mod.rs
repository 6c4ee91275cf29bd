//! Tests which omissions of the calls that order the devices' work are noticed.
//!
//! `src/torch/streams/left_out.rs` leaves out the call at one site. The short trainings in `parts` report the
//! sites that they reach, then run again without one of them: the checks of the simulated devices
//! (src/simulated_cuda/checks) or the program's own must stop the run, or its numbers must change. With
//! `GPIPE_MUTATIONS=FILE` this covers every site, and the table replaces that of the file, a page of the book
//! (`make mutations`, some minutes). Otherwise it covers one site of each kind.

mod explained;
mod parts;
mod sources;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use crate::apart;
use crate::harness::Test;
use crate::rounds;
use explained::EXPLAINED;
use parts::NUMBERS;
pub(crate) use parts::PARTS;

/// Time limit of one run.
const LIMIT: Duration = Duration::from_mins(2);

/// Concurrent runs.
const RUNS: usize = 2;

/// A site of each kind: the call, its line, and the part that notices its omission.
const ONE_OF_EACH: [(&str, &str, &str); 10] = [
    ("capture lock", "if left_out", "mutations::captured_beside"),
    ("enter", "before.push(", "mutations::between_devices"),
    (
        "finish",
        "cuda::finish(&ready)?;",
        "mutations::with_the_host",
    ),
    ("hold", "if !left_out", "mutations::offloaded"),
    (
        "non_blocking",
        "if left_out(\"non_blocking\") {",
        "mutations::offloaded",
    ),
    ("record", "let done = ", "mutations::between_devices"),
    (
        "submit_guard",
        "guard_of_other(to)",
        "mutations::between_devices",
    ),
    (
        "submit_scope",
        "streams.submit_scope()",
        "mutations::captured",
    ),
    ("used_by", "(&tensor, near)", "mutations::between_devices"),
    ("wait", "(near, done)", "mutations::between_devices"),
];

/// Empty in builds without debug assertions, which cannot leave out calls.
pub(crate) fn tests() -> Vec<Test> {
    if !cfg!(debug_assertions) {
        return Vec::new();
    }
    let some: Test = (
        "mutations::a_call_of_each_kind_that_is_left_out_is_noticed",
        some,
    );
    let all: Test = ("mutations::every_call_that_is_left_out_is_noticed", all);
    match std::env::var_os("GPIPE_MUTATIONS") {
        Some(_) => vec![some, all],
        None => vec![some],
    }
}

/// Outcome of a run, in the table's words.
#[derive(PartialEq, Eq)]
enum Ended {
    Well { numbers: String },
    Noticed(&'static str),
}

/// Texts in the output of a stopped run, and the table's words for them.
const TOLD: [(&str, &str); 4] = [
    ("simulated GPU check: the host", "checks: the host"),
    ("neither waits", "checks: order"),
    ("simulated GPU check", "checks"),
    ("does not share the device", "checks: the lock of captures"),
];

/// Runs a part with a variable of `left_out.rs`, on simulated devices with these settings.
fn run(part: &str, (variable, value): (&str, &str), settings: &str) -> (Ended, String) {
    let variables = [(apart::VARIABLE, settings), (variable, value)];
    let ended = apart::run_with(&variables, &["--one", part], LIMIT).unwrap();
    let text = ended.output;
    let told = TOLD.iter().find(|(words, _)| text.contains(words));
    let how = match (told, ended.status) {
        (Some((_, how)), _) => Ended::Noticed(how),
        (None, None) => Ended::Noticed("it hangs"),
        (None, Some(status)) if !status.success() => Ended::Noticed("an error"),
        (None, Some(_)) => {
            let numbers = text.lines().filter(|line| line.starts_with(NUMBERS));
            let numbers = numbers.collect::<Vec<_>>().join("\n");
            Ended::Well { numbers }
        }
    };
    (how, text)
}

/// The numbers of complete parts, and the parts that reach each site.
#[derive(Default)]
struct Reached {
    numbers: BTreeMap<&'static str, String>,
    sites: BTreeMap<String, Vec<&'static str>>,
}

impl Reached {
    fn by(parts: impl Iterator<Item = &'static str>) -> Self {
        let mut all = Self::default();
        for part in parts {
            let file = tempfile::NamedTempFile::new().unwrap();
            let path = file.path().to_str().unwrap();
            let (ended, text) = run(part, ("GPIPE_SITES", path), rounds::PLAIN);
            let Ended::Well { numbers } = ended else {
                panic!("{part} does not go well by itself:\n{text}");
            };
            all.numbers.insert(part, numbers);
            for site in std::fs::read_to_string(path).unwrap().lines() {
                all.sites.entry(site.to_owned()).or_default().push(part);
            }
        }
        all
    }

    /// How a part notices the omission of a site.
    fn noticed_by(&self, site: &str, part: &'static str, settings: &str) -> Option<&'static str> {
        match run(part, ("GPIPE_LEAVE_OUT", site), settings).0 {
            Ended::Noticed(how) => Some(how),
            Ended::Well { numbers } if numbers != self.numbers[part] => Some("other numbers"),
            Ended::Well { .. } => None,
        }
    }

    /// The first part that notices, and how; runs with delays if none does.
    fn noticed(&self, site: &str, parts: &[&'static str]) -> Option<(&'static str, &'static str)> {
        let delays = format!("{},{},seed=1", rounds::PLAIN, rounds::DELAYS);
        [rounds::PLAIN, &delays].iter().find_map(|settings| {
            let mut parts = parts.iter();
            parts.find_map(|part| Some((*part, self.noticed_by(site, part, settings)?)))
        })
    }
}

/// Applies `work` to each item, a few at a time.
fn for_each<T: Send>(all: impl IntoIterator<Item = T, IntoIter: Send>, work: impl Fn(T) + Sync) {
    let all = Mutex::new(all.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..RUNS {
            scope.spawn(|| {
                loop {
                    let next = all.lock().unwrap().next();
                    let Some(next) = next else { break };
                    work(next);
                }
            });
        }
    });
}

fn some() {
    let mut parts = ONE_OF_EACH.map(|(_, _, part)| part).to_vec();
    parts.sort_unstable();
    parts.dedup();
    let reached = Reached::by(parts.into_iter());
    let missed = Mutex::new(Vec::new());
    for_each(ONE_OF_EACH, |(what, line, part)| {
        let found = reached.sites.iter().find(|(site, parts)| {
            let own = line_of(site).is_some_and(|text| text.contains(line));
            own && site.starts_with(what) && parts.contains(&part)
        });
        let noticed = found.and_then(|(site, _)| reached.noticed_by(site, part, rounds::PLAIN));
        if noticed.is_none() {
            missed.lock().unwrap().push((what, line, found));
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "nobody notices {missed:#?}");
}

/// How the omission of each site is noticed.
type Rows = BTreeMap<String, Option<(&'static str, &'static str)>>;

fn all() {
    let path = std::env::var("GPIPE_MUTATIONS").unwrap();
    let reached = Reached::by(PARTS.iter().map(|(part, _)| *part));
    let mut never = sources::sites();
    never.retain(|site| !reached.sites.contains_key(site));
    assert!(never.is_empty(), "no part reaches {never:#?}");
    let rows = Mutex::new(Rows::new());
    for_each(&reached.sites, |(site, parts)| {
        let how = reached.noticed(site, parts);
        rows.lock().unwrap().insert(site.clone(), how);
    });
    let rows = rows.into_inner().unwrap();
    let table = table(&rows);
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once(HEAD).unwrap();
    std::fs::write(path, format!("{before}{table}")).unwrap();
    let unknown = rows
        .iter()
        .filter(|(site, how)| how.is_none() && explained(site).is_none());
    let unknown: Vec<_> = unknown.map(|(site, _)| site).collect();
    assert!(unknown.is_empty(), "nobody notices {unknown:#?}\n{table}");
}

/// The source line of a site.
fn line_of(site: &str) -> Option<String> {
    let (_, place) = site.split_once(" src/")?;
    let (file, line) = place.rsplit_once(':')?;
    let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().nth(line.parse::<usize>().ok()? - 1)?;
    Some(line.trim().to_owned())
}

fn explained(site: &str) -> Option<&'static str> {
    let line = line_of(site)?;
    let found = EXPLAINED.iter().find(|(what, file, part, _)| {
        site.starts_with(what) && site.contains(file) && line.contains(part)
    });
    found.map(|(.., why)| *why)
}

/// The table's head; the table is the end of the page.
const HEAD: &str = "| left out | where | noticed by |\n|---|---|---|\n";

fn table(rows: &Rows) -> String {
    let mut table = HEAD.to_owned();
    for (site, how) in rows {
        let (what, place) = site.split_once(" src/").unwrap_or((site, ""));
        let file = place.rsplit_once(':').map_or(place, |(file, _)| file);
        let line = line_of(site).unwrap_or_default().replace('|', "\\|");
        let how = match how {
            Some((part, how)) => format!("{how} ({})", part.trim_start_matches("mutations::")),
            None => explained(site).map_or("nobody".to_owned(), |why| format!("nobody: {why}")),
        };
        let _ = writeln!(table, "| {what} | `src/{file}`: `{line}` | {how} |");
    }
    table
}
