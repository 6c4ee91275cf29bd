//! Runs tests one after the other, or says why it does not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use gpipe::partitioner::Bytes;

/// One test, by name.
pub(crate) type Test = (&'static str, fn());

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
}

pub(crate) fn run(tests: &[Test]) -> ExitCode {
    let asked = asked(std::env::args().skip(1));
    if asked.list {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let chosen = tests.iter().filter(|(name, _)| {
        asked.filters.is_empty()
            || asked
                .filters
                .iter()
                .any(|filter| name.contains(filter.as_str()))
    });
    let reason = gpipe::cuda_available().err().map(|why| why.to_string());
    let results: Vec<_> = chosen
        .map(|test| (test.0, one(test, reason.as_deref())))
        .collect();
    report(&results);
    if let Some(path) = &asked.json {
        std::fs::write(path, json(&results)).expect("the file can be written");
    }
    if results
        .iter()
        .any(|(_, result)| matches!(result, Result::Failed(_)))
    {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Flags of the usual harness are accepted and mean nothing here.
fn asked(mut arguments: impl Iterator<Item = String>) -> Asked {
    let mut asked = Asked::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => asked.json = arguments.next(),
            "--list" => asked.list = true,
            "--test-threads" | "--format" | "--color" => drop(arguments.next()),
            flag if flag.starts_with('-') => {}
            _ => asked.filters.push(argument),
        }
    }
    asked
}

fn one((name, test): &Test, reason: Option<&str>) -> Result {
    if let Some(reason) = reason {
        return Result::Skipped(reason.to_owned());
    }
    let result = match catch_unwind(AssertUnwindSafe(test)) {
        Ok(()) => Result::Passed,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Result::Failed(text.unwrap_or("a panic without a message").to_owned())
        }
    };
    println!("test {name} ... {}", result.word());
    result
}

fn report(results: &[(&str, Result)]) {
    let count = |word: &str| results.iter().filter(|(_, r)| r.word() == word).count();
    let skipped = results.iter().filter(|(_, r)| r.word() == "skipped");
    for (name, result) in results.iter().filter(|(_, r)| r.word() == "failed") {
        println!("\n{name} failed:\n{}", result.why());
    }
    if let Some((_, result)) = skipped.into_iter().next() {
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
    let quoted = |text: &str| {
        format!("{text:?}")
            .replace("\\'", "'")
            .replace("\\u{", "u{")
    };
    let lines = results.iter().map(|(name, result)| {
        format!(
            "  {{\"name\": {}, \"result\": {}, \"why\": {}}}",
            quoted(name),
            quoted(result.word()),
            quoted(result.why())
        )
    });
    format!("[\n{}\n]\n", lines.collect::<Vec<_>>().join(",\n"))
}

/// So many MiB.
pub(crate) fn mib(count: u64) -> Bytes {
    Bytes(count << 20)
}
