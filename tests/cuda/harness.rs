//! Runs tests, each in its own process, or gives the reason for skipping them.
//!
//! A failed device stays failed for its process, and some failures abort: neither may affect other tests. The
//! file of results is rewritten after each test.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpipe::partitioner::Bytes;
use serde_json::{Map, Value};

use crate::apart;
pub(crate) use crate::report::Outcome;
use crate::report::{self, Result, Row};
use crate::rounds::{self, Round};

/// A named test.
pub(crate) type Test = (&'static str, fn());

/// Tests of the harness itself, which need no device.
const OWN: [Test; 1] = [("harness::a_test_that_aborts_costs_no_other", aborting)];

/// Tests that these run.
const BROKEN: [Test; 5] = [
    ("broken::passes", || note("losses", [1.5, 2.0])),
    ("broken::aborts", || std::process::abort()),
    ("broken::fails", || panic!("as asked")),
    ("broken::skips", || skip("as asked")),
    ("broken::passes_too", || {}),
];

/// Time limit of a test.
pub(crate) const LIMIT: Duration = Duration::from_mins(10);

/// Concurrent processes on simulated devices.
const AT_ONCE: usize = 2;

/// Exit codes of a test's process, and the prefixes of the reason and of the numbers.
const FAILED: u8 = 101;
const SKIPPED: u8 = 77;
const REASON: &str = "reason: ";
const NOTE: &str = "note: ";

/// The reason for skipping a test.
struct Skipped(String);

/// Skips the test for this reason.
pub(crate) fn skip(why: &str) {
    panic_any(Skipped(why.to_owned()));
}

/// Adds a test's numbers to the file of results, where those of a GPU are compared with those of simulated
/// devices.
pub(crate) fn note(name: &str, numbers: impl Into<Value>) {
    println!("{NOTE}{}", serde_json::json!({ name: numbers.into() }));
}

/// Tests with the same requirements.
#[derive(Clone)]
pub(crate) struct Group {
    tests: Vec<Test>,
    simulated: bool,
    once: bool,
    settings: &'static str,
}

impl Group {
    /// Tests for real and simulated GPUs.
    pub(crate) fn anywhere(tests: Vec<Test>) -> Self {
        Self {
            tests,
            simulated: false,
            once: false,
            settings: "",
        }
    }

    /// Tests for simulated devices only, which they control (see `simulated.rs`).
    pub(crate) fn simulated(tests: Vec<Test>) -> Self {
        Self {
            simulated: true,
            ..Self::anywhere(tests)
        }
    }

    /// Skips the rounds with delays, which make no difference to these tests.
    pub(crate) fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// Extends the settings of simulated devices: `memory=1GiB,checks=off`.
    pub(crate) fn settings(self, settings: &'static str) -> Self {
        Self { settings, ..self }
    }

    fn settings_in(&self, round: &Round) -> Option<String> {
        let own = round.settings.as_ref()?;
        let comma = if self.settings.is_empty() { "" } else { "," };
        Some(format!("{own}{comma}{}", self.settings))
    }
}

/// A test in a round.
struct Job {
    test: Test,
    settings: Option<String>,
    /// The outcome, if it is known without a run.
    known: Option<Outcome>,
}

/// The command line.
struct Asked {
    filters: Vec<String>,
    json: Option<String>,
    list: bool,
    /// Number of rounds with delays.
    seeds: u64,
    /// The test that this process runs.
    one: Option<String>,
    broken: bool,
}

/// Runs the selected tests; `parts` are functions that some of them run in separate processes.
pub(crate) fn run(groups: &[Group], parts: &[Test]) -> ExitCode {
    let asked = asked(std::env::args().skip(1));
    let tests: Vec<Test> = groups
        .iter()
        .flat_map(|group| group.tests.clone())
        .collect();
    if let Some(name) = &asked.one {
        let own = [rounds::PROBE];
        let all = tests.iter().chain(parts).chain(&OWN).chain(&BROKEN);
        return match all.chain(&own).find(|(own, _)| own == name) {
            Some((_, test)) => here(*test),
            None => ExitCode::from(2),
        };
    }
    if asked.list {
        let all = OWN.iter().chain(&tests);
        all.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let jobs = if asked.broken {
        without_devices(&BROKEN)
    } else {
        jobs(groups, &asked)
    };
    if run_all(&jobs, asked.json.as_deref()) {
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

fn without_devices(tests: &[Test]) -> Vec<Job> {
    let job = |test: &Test| Job {
        test: *test,
        settings: None,
        known: None,
    };
    tests.iter().map(job).collect()
}

/// The selected tests, round by round.
fn jobs(groups: &[Group], asked: &Asked) -> Vec<Job> {
    let mut jobs = without_devices(&OWN);
    let rounds = rounds::here(asked.seeds);
    let none = [Round {
        settings: None,
        again: false,
    }];
    let (rounds, missing) = match &rounds {
        Ok(rounds) => (&rounds[..], None),
        Err(why) => (&none[..], Some(why)),
    };
    for round in rounds {
        for group in groups.iter().filter(|group| !(group.once && round.again)) {
            jobs.extend(group.tests.iter().map(|test| Job {
                test: *test,
                settings: group.settings_in(round),
                known: missing.cloned().or_else(|| group.not_on(round)),
            }));
        }
    }
    jobs.retain(|job| asked.wants(job.test.0));
    jobs
}

impl Group {
    /// The reason why these tests do not apply to a round's devices.
    fn not_on(&self, round: &Round) -> Option<Outcome> {
        let only = "they are for simulated devices, which can be told what to do";
        (self.simulated && round.settings.is_none()).then(|| Outcome::Skipped(only.to_owned()))
    }
}

/// Runs all jobs. Returns whether no test failed.
fn run_all(jobs: &[Job], json: Option<&str>) -> bool {
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let settings = job.settings.as_deref();
            let result = match &job.known {
                Some(known) => Result::without_run(known.clone()),
                None => apart(job.test.0, settings),
            };
            let row = Row {
                name: job.test.0,
                settings,
                result,
            };
            let mut rows = rows.lock().unwrap();
            println!("test {} ... {}", row.title(), row.ended());
            rows.push(row);
            if let Some(path) = json {
                std::fs::write(path, report::json(&rows)).expect("the file can be written");
            }
        }
    };
    // On a GPU each test has the device to itself.
    let simulated = jobs.iter().any(|job| job.settings.is_some());
    std::thread::scope(|scope| {
        for _ in 1..if simulated { AT_ONCE } else { 1 } {
            scope.spawn(work);
        }
        work();
    });
    let rows = rows.into_inner().unwrap();
    report::print(&rows);
    let failed = |row: &Row<'_>| matches!(row.result.outcome, Outcome::Failed(_));
    !rows.iter().any(failed)
}

impl Asked {
    fn wants(&self, name: &str) -> bool {
        let mut filters = self.filters.iter();
        self.filters.is_empty() || filters.any(|filter| name.contains(filter.as_str()))
    }
}

/// Parses the command line; flags of the usual harness are accepted and ignored.
fn asked(mut arguments: impl Iterator<Item = String>) -> Asked {
    let mut asked = Asked {
        filters: Vec::new(),
        json: None,
        list: false,
        seeds: 3,
        one: None,
        broken: false,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => asked.json = arguments.next(),
            "--seeds" => {
                let seeds = arguments.next().and_then(|text| text.parse().ok());
                asked.seeds = seeds.expect("`--seeds` needs a number");
            }
            "--one" => asked.one = arguments.next(),
            "--broken" => asked.broken = true,
            "--list" => asked.list = true,
            "--test-threads" | "--format" | "--color" => drop(arguments.next()),
            flag if flag.starts_with('-') => {}
            _ => asked.filters.push(argument),
        }
    }
    asked
}

/// Runs a test in this process, which the test may bring down.
fn here(test: fn()) -> ExitCode {
    let Err(payload) = catch_unwind(AssertUnwindSafe(test)) else {
        return ExitCode::SUCCESS;
    };
    if let Some(Skipped(why)) = payload.downcast_ref() {
        println!("{REASON}{why}");
        return ExitCode::from(SKIPPED);
    }
    println!("{REASON}{}", text(&*payload));
    ExitCode::from(FAILED)
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message")
}

/// Runs a test in a separate process, on simulated devices with these settings.
pub(crate) fn apart(name: &str, settings: Option<&str>) -> Result {
    let begin = Instant::now();
    let ended = match apart::run_on(settings, &["--one", name], LIMIT) {
        Ok(ended) => ended,
        Err(error) => {
            let why = format!("no process for it: {error}");
            return Result::without_run(Outcome::Failed(why));
        }
    };
    let reason = ended.output.rsplit_once(REASON);
    let reason = reason.map(|(_, why)| why.trim_end().to_owned());
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    let outcome = match (code, reason) {
        (Some(0), _) => Outcome::Passed,
        (Some(SKIPPED), Some(why)) => Outcome::Skipped(why),
        (Some(FAILED), Some(why)) => Outcome::Failed(why),
        _ => Outcome::Failed(ended.why()),
    };
    Result {
        outcome,
        seconds: begin.elapsed().as_secs_f64(),
        numbers: noted(&ended.output),
    }
}

/// The numbers in a test's output.
fn noted(output: &str) -> Map<String, Value> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(NOTE));
    let notes = lines.filter_map(|note| serde_json::from_str::<Map<_, _>>(note).ok());
    notes.flatten().collect()
}

/// Regression test: an abort (such as a device failure in a destructor) ended all later tests, and lost the
/// earlier results, which were written at the end.
fn aborting() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let path = folder.path().join("results.json");
    let arguments = ["--broken".as_ref(), "--json".as_ref(), path.as_os_str()];
    let ended = apart::run(&arguments, LIMIT).expect("this program can be run");
    assert_eq!(ended.code(), Some(1), "{}", ended.output);
    let text = std::fs::read_to_string(path).expect("there are results");
    let results: Value = serde_json::from_str(&text).expect("they are JSON");
    let words: Vec<_> = (0..BROKEN.len())
        .map(|test| results[test]["result"].as_str().unwrap_or_default())
        .collect();
    let expected = ["passed", "failed", "failed", "skipped", "passed"];
    assert_eq!(words, expected, "{text}");
    let why = |test: usize| results[test]["why"].as_str().unwrap_or_default();
    assert!(why(1).contains("SIGABRT"), "{text}");
    assert_eq!((why(2), why(3)), ("as asked", "as asked"), "{text}");
    let losses = &results[0]["numbers"]["losses"];
    assert_eq!(losses, &serde_json::json!([1.5, 2.0]), "{text}");
}

/// Converts MiB to bytes.
pub(crate) fn mib(count: u64) -> Bytes {
    Bytes(count << 20)
}
