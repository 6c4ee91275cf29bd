//! Runs tests, each in a process of its own, or says why it does not.
//!
//! A device that fails stays so for its process, and some failures abort: neither may cost
//! the other tests. The file of results is written anew after each.

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

/// One test, by name.
pub(crate) type Test = (&'static str, fn());

/// Tests of the harness itself, for which there need be no device.
const OWN: [Test; 1] = [("harness::a_test_that_aborts_costs_no_other", aborting)];

/// What these run.
const BROKEN: [Test; 5] = [
    ("broken::passes", || note("losses", [1.5, 2.0])),
    ("broken::aborts", || std::process::abort()),
    ("broken::fails", || panic!("as asked")),
    ("broken::skips", || skip("as asked")),
    ("broken::passes_too", || {}),
];

/// For one test.
pub(crate) const LIMIT: Duration = Duration::from_mins(10);

/// Processes at a time on simulated devices.
const AT_ONCE: usize = 2;

/// Exit codes of a test's process, and what is before the reason and before numbers.
const FAILED: u8 = 101;
const SKIPPED: u8 = 77;
const REASON: &str = "reason: ";
const NOTE: &str = "note: ";

/// Why a test has nothing to show here.
struct Skipped(String);

/// Ends the test: there is nothing to show here.
pub(crate) fn skip(why: &str) {
    panic_any(Skipped(why.to_owned()));
}

/// Has numbers of a test be in the file of results, where those of a GPU are compared with
/// those of simulated devices.
pub(crate) fn note(name: &str, numbers: impl Into<Value>) {
    println!("{NOTE}{}", serde_json::json!({ name: numbers.into() }));
}

/// Tests that run alike.
#[derive(Clone)]
pub(crate) struct Group {
    tests: Vec<Test>,
    simulated: bool,
    once: bool,
    settings: &'static str,
}

impl Group {
    /// For a GPU, and for simulated ones.
    pub(crate) fn anywhere(tests: Vec<Test>) -> Self {
        Self {
            tests,
            simulated: false,
            once: false,
            settings: "",
        }
    }

    /// For simulated devices only: these tests control them (see `simulated.rs`).
    pub(crate) fn simulated(tests: Vec<Test>) -> Self {
        Self {
            simulated: true,
            ..Self::anywhere(tests)
        }
    }

    /// Not again with delays: no order of things makes a difference here.
    pub(crate) fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// What is added to the settings of simulated devices: `memory=1GiB,checks=off`.
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
    /// How it went, where that is known without a run.
    known: Option<Outcome>,
}

/// What is asked for on the command line.
struct Asked {
    filters: Vec<String>,
    json: Option<String>,
    list: bool,
    /// Rounds with delays.
    seeds: u64,
    /// The test that this process is for.
    one: Option<String>,
    broken: bool,
}

/// Runs the tests that are asked for; `parts` are what some of them run in processes of
/// their own.
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

/// What is asked for, round by round.
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
    /// Why these tests are nothing for the devices of a round.
    fn not_on(&self, round: &Round) -> Option<Outcome> {
        let only = "they are for simulated devices, which can be told what to do";
        (self.simulated && round.settings.is_none()).then(|| Outcome::Skipped(only.to_owned()))
    }
}

/// Whether no test failed.
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
    // On a GPU each has the device for itself.
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

/// Flags of the usual harness are accepted and mean nothing here.
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

/// Runs a test in this process, which it may take along.
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

/// Runs a test in a process of its own, on simulated devices of these settings.
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

/// The numbers in what a test printed.
fn noted(output: &str) -> Map<String, Value> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(NOTE));
    let notes = lines.filter_map(|note| serde_json::from_str::<Map<_, _>>(note).ok());
    notes.flatten().collect()
}

/// An abort (as of a device that fails in a destructor) took all tests behind it along, and
/// the results of those before it, which were written at the end.
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

/// So many MiB.
pub(crate) fn mib(count: u64) -> Bytes {
    Bytes(count << 20)
}
