//! Test results, as text and as JSON.

use serde_json::{Map, Value, json};

/// Outcome of a test.
#[derive(Clone)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Outcome {
    pub(crate) fn word(&self) -> &'static str {
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

/// Outcome of a test, and its notes.
pub(crate) struct Result {
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    /// Noted by [`note`](crate::harness::note).
    pub(crate) numbers: Map<String, Value>,
}

impl Result {
    /// The result of a test that did not run.
    pub(crate) fn without_run(outcome: Outcome) -> Self {
        Self {
            outcome,
            seconds: 0.0,
            numbers: Map::new(),
        }
    }
}

/// Result of a test in a round, with the round's settings (none on a GPU).
pub(crate) struct Row<'a> {
    pub(crate) name: &'static str,
    pub(crate) settings: Option<&'a str>,
    pub(crate) result: Result,
}

impl Row<'_> {
    /// Formats as `name [settings]`.
    pub(crate) fn title(&self) -> String {
        match self.settings {
            Some(settings) => format!("{} [{settings}]", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Formats as `passed, 1.2 s`.
    pub(crate) fn ended(&self) -> String {
        let Result {
            outcome, seconds, ..
        } = &self.result;
        match outcome {
            Outcome::Skipped(_) => outcome.word().to_owned(),
            _ => format!("{}, {seconds:.1} s", outcome.word()),
        }
    }

    fn is(&self, word: &str) -> bool {
        self.result.outcome.word() == word
    }
}

/// Prints failures, skipped tests and the counts.
pub(crate) fn print(rows: &[Row<'_>]) {
    let count = |word: &str| rows.iter().filter(|row| row.is(word)).count();
    for row in rows.iter().filter(|row| row.is("failed")) {
        println!("\n{} failed:\n{}", row.title(), row.result.outcome.why());
    }
    let mut reasons: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.is("skipped")) {
        let why = row.result.outcome.why();
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }
    for reason in reasons {
        let same = |row: &&Row<'_>| row.is("skipped") && row.result.outcome.why() == reason;
        let skipped = rows.iter().filter(same).count();
        println!("\n{skipped} CUDA tests are skipped: {reason}");
    }
    let verdict = if count("failed") == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; {} skipped\n",
        count("passed"),
        count("failed"),
        count("skipped")
    );
}

/// Lists all results so far.
pub(crate) fn json(rows: &[Row<'_>]) -> String {
    let one = |row: &Row<'_>| {
        let Result {
            outcome,
            seconds,
            numbers,
        } = &row.result;
        json!({
            "name": row.name,
            "simulated": row.settings,
            "result": outcome.word(),
            "why": outcome.why(),
            "seconds": (seconds * 1e3).round() / 1e3,
            "numbers": numbers,
        })
    };
    let all: Vec<_> = rows.iter().map(one).collect();
    format!("{:#}\n", Value::from(all))
}
