//! Results of a benchmark, for the table at the end of `make bench`.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

use serde::Serialize;
use serde_json::{Value, json};

/// A measured value and its limit.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    what: String,
    measured: String,
    limit: String,
    holds: bool,
}

/// All results of a benchmark.
pub struct Report {
    name: &'static str,
    claims: Vec<Claim>,
    rows: Vec<Value>,
}

impl Report {
    pub fn new(name: &'static str) -> Self {
        let (claims, rows) = (Vec::new(), Vec::new());
        Self { name, claims, rows }
    }

    /// Records a number that must not exceed `limit`.
    pub fn at_most(&mut self, what: impl Into<String>, measured: f64, limit: f64, unit: &str) {
        self.claims.push(Claim {
            what: what.into(),
            measured: format!("{measured:.2} {unit}"),
            limit: format!("at most {limit} {unit}"),
            holds: measured <= limit,
        });
    }

    /// Records a number that must not be below `limit`.
    pub fn at_least(&mut self, what: impl Into<String>, measured: f64, limit: f64, unit: &str) {
        self.claims.push(Claim {
            what: what.into(),
            measured: format!("{measured:.2} {unit}"),
            limit: format!("at least {limit} {unit}"),
            holds: measured >= limit,
        });
    }

    /// Records a measurement of any form.
    pub fn row(&mut self, row: impl Serialize) {
        self.rows.push(json!(row));
    }

    /// Prints the claims that do not hold and writes everything to `target/tmp/bench-NAME.json`.
    pub fn write(self) -> anyhow::Result<()> {
        for claim in self.claims.iter().filter(|claim| !claim.holds) {
            println!(
                "does not hold: {}: {}, {}",
                claim.what, claim.measured, claim.limit
            );
        }
        let file = format!("{}/bench-{}.json", env!("CARGO_TARGET_TMPDIR"), self.name);
        let all = json!({"benchmark": self.name, "claims": self.claims, "rows": self.rows});
        std::fs::write(&file, serde_json::to_string_pretty(&all)?)?;
        println!("everything in {file}");
        Ok(())
    }
}

/// The median, or the lower of the two middle numbers.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len().saturating_sub(1) / 2;
    numbers.get(middle).copied().unwrap_or(f64::NAN)
}
