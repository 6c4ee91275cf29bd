//! Runs tests one after the other, each in a process of its own, or says why it does not.
//!
//! A device that fails stays so for its process, and some failures abort: neither may cost
//! the other tests. The file of results is written anew after each.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::process::ExitCode;
use std::time::Duration;

use gpipe::partitioner::Bytes;

use crate::apart;

/// One test, by name.
pub(crate) type Test = (&'static str, fn());

/// Tests of the harness itself, for which there need be no device.
const OWN: [Test; 1] = [("harness::a_test_that_aborts_costs_no_other", aborting)];

/// What these run.
const BROKEN: [Test; 5] = [
    ("broken::passes", || {}),
    ("broken::aborts", || std::process::abort()),
    ("broken::fails", || panic!("as asked")),
    ("broken::skips", || skip("as asked")),
    ("broken::passes_too", || {}),
];

/// For one test.
pub(crate) const LIMIT: Duration = Duration::from_mins(10);

/// Exit codes of a test's process, and what is before the reason.
const FAILED: u8 = 101;
const SKIPPED: u8 = 77;
const REASON: &str = "reason: ";

/// Why a test has nothing to show here.
struct Skipped(String);

/// Ends the test: there is nothing to show here.
pub(crate) fn skip(why: &str) {
    panic_any(Skipped(why.to_owned()));
}

/// How one went.
enum Result {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Result {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
        }
    }

    fn why(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(why) | Self::Skipped(why) => why,
        }
    }
}

/// What is asked for on the command line.
#[derive(Default)]
struct Asked {
    filters: Vec<String>,
    json: Option<String>,
    list: bool,
    /// The test that this process is for.
    one: Option<String>,
    broken: bool,
}

/// Runs the tests that are asked for; `parts` are what some of them run in processes of
/// their own.
pub(crate) fn run(tests: &[Test], parts: &[Test]) -> ExitCode {
    let asked = asked(std::env::args().skip(1));
    if let Some(name) = &asked.one {
        let mut all = tests.iter().chain(parts).chain(&OWN).chain(&BROKEN);
        return match all.find(|(own, _)| own == name) {
            Some((_, test)) => here(*test),
            None => ExitCode::from(2),
        };
    }
    let (own, tests) = if asked.broken {
        (&BROKEN[..], &[][..])
    } else {
        (&OWN[..], tests)
    };
    if asked.list {
        let all = own.iter().chain(tests);
        all.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let mut results = Vec::new();
    let mut add = |name: &'static str, result: Result| {
        println!("test {name} ... {}", result.word());
        results.push((name, result));
        if let Some(path) = &asked.json {
            std::fs::write(path, json(&results)).expect("the file can be written");
        }
    };
    for (name, _) in own.iter().filter(|(name, _)| asked.wants(name)) {
        add(name, apart(name));
    }
    let reason = gpipe::cuda_available().err().map(|why| why.to_string());
    for (name, _) in tests.iter().filter(|(name, _)| asked.wants(name)) {
        add(
            name,
            match &reason {
                Some(reason) => Result::Skipped(reason.clone()),
                None => apart(name),
            },
        );
    }
    report(&results);
    let failed = |(_, result): &(_, Result)| matches!(result, Result::Failed(_));
    if results.iter().any(failed) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

impl Asked {
    fn wants(&self, name: &str) -> bool {
        let mut filters = self.filters.iter();
        self.filters.is_empty() || filters.any(|filter| name.contains(filter.as_str()))
    }
}

/// Flags of the usual harness are accepted and mean nothing here.
fn asked(mut arguments: impl Iterator<Item = String>) -> Asked {
    let mut asked = Asked::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => asked.json = arguments.next(),
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

/// Runs a test in a process of its own.
fn apart(name: &str) -> Result {
    let ended = match apart::run(&["--one", name], LIMIT) {
        Ok(ended) => ended,
        Err(error) => return Result::Failed(format!("no process for it: {error}")),
    };
    let reason = ended.output.rsplit_once(REASON);
    let reason = reason.map(|(_, why)| why.trim_end().to_owned());
    match (
        ended.code().and_then(|code| u8::try_from(code).ok()),
        reason,
    ) {
        (Some(0), _) => Result::Passed,
        (Some(SKIPPED), Some(why)) => Result::Skipped(why),
        (Some(FAILED), Some(why)) => Result::Failed(why),
        _ => Result::Failed(ended.why()),
    }
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
    let results: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
    let words: Vec<_> = (0..BROKEN.len())
        .map(|test| results[test]["result"].as_str().unwrap_or_default())
        .collect();
    let expected = ["passed", "failed", "failed", "skipped", "passed"];
    assert_eq!(words, expected, "{text}");
    let why = |test: usize| results[test]["why"].as_str().unwrap_or_default();
    assert!(why(1).contains("SIGABRT"), "{text}");
    assert_eq!((why(2), why(3)), ("as asked", "as asked"), "{text}");
}

fn report(results: &[(&str, Result)]) {
    let count = |word: &str| results.iter().filter(|(_, r)| r.word() == word).count();
    for (name, result) in results.iter().filter(|(_, r)| r.word() == "failed") {
        println!("\n{name} failed:\n{}", result.why());
    }
    let mut skipped = results.iter().filter(|(_, r)| r.word() == "skipped");
    if let Some((_, result)) = skipped.next() {
        println!(
            "\n{} CUDA tests are skipped: {}",
            count("skipped"),
            result.why()
        );
    }
    let verdict = if count("failed") == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; {} skipped\n",
        count("passed"),
        count("failed"),
        count("skipped")
    );
}

fn json(results: &[(&str, Result)]) -> String {
    let one = |(name, result): &(&str, Result)| {
        let (result, why) = (result.word(), result.why());
        serde_json::json!({"name": name, "result": result, "why": why})
    };
    let all: Vec<_> = results.iter().map(one).collect();
    format!("{:#}\n", serde_json::Value::from(all))
}

/// So many MiB.
pub(crate) fn mib(count: u64) -> Bytes {
    Bytes(count << 20)
}
