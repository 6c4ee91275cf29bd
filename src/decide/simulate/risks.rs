//! What may go wrong in a long run: action times that vary, and failures.

use gpipe_partitioner::words::{count, long_time};
use gpipe_partitioner::{Failures, Jitter, JitteredSteps, Micros};
use serde_json::{Value, json};

use super::super::{Failure, input};

/// The share of steps that the long ones are longer than.
const LONG: f64 = 0.95;

/// Flags of jitter and failures.
#[derive(Debug, clap::Args)]
pub(super) struct Risks {
    /// What it costs that action times vary by so much (standard deviation), such as 5%: mean and
    /// quantiles of many steps.
    #[arg(long, value_name = "SHARE", value_parser = input::share)]
    jitter: Option<f64>,
    /// How many steps with jitter are simulated.
    #[arg(
        long, value_name = "N", default_value = "200", requires = "jitter", allow_negative_numbers = true,
        value_parser = input::at_least_one
    )]
    jitter_runs: usize,
    /// What jitter is drawn from: the same seed gives the same numbers.
    #[arg(long, value_name = "N", default_value = "0", requires = "jitter")]
    jitter_seed: u64,
    /// Mean time between failures of anything that stops the run, such as 6h: how often to write a
    /// checkpoint (Young, Daly), and the goodput. Of n devices it is 1/n of one device's.
    #[arg(long, value_name = "TIME", requires = "checkpoint_time", value_parser = input::micros)]
    mtbf: Option<Micros>,
    /// How long writing a checkpoint holds training up.
    #[arg(long, value_name = "TIME", requires = "mtbf", value_parser = input::micros)]
    checkpoint_time: Option<Micros>,
    /// How long it takes from a failure to the first step again.
    #[arg(long, value_name = "TIME", default_value = "0", requires = "mtbf", value_parser = input::micros)]
    restart_time: Micros,
}

impl Risks {
    /// Whether there is anything of it.
    pub(super) fn any(&self) -> bool {
        self.jitter.is_some() || self.mtbf.is_some()
    }

    pub(super) fn jitter(&self) -> Result<Option<Jitter>, Failure> {
        let jitter = self
            .jitter
            .map(|share| Jitter::new(share, self.jitter_runs, self.jitter_seed));
        let wrong = |error| Failure::Usage(format!("--jitter: {error}"));
        jitter.transpose().map_err(wrong)
    }

    pub(super) fn failures(&self) -> Result<Option<Failures>, Failure> {
        let (Some(between), Some(checkpoint)) = (self.mtbf, self.checkpoint_time) else {
            return Ok(None);
        };
        let failures = Failures::new(between, checkpoint, self.restart_time);
        let wrong = |_| Failure::Usage("--mtbf: must be more than no time, such as 6h".to_owned());
        failures.map(Some).map_err(wrong)
    }
}

/// What jitter costs, in a sentence.
pub(super) fn jitter_sentence(jitter: &Jitter, steps: &JitteredSteps) -> String {
    format!(
        "jitter of {:.1} % of action times: a step takes {} on average, {:.1} % more; half of {} take at \
         most {}, {:.0} % at most {}",
        100.0 * jitter.share(),
        steps.mean(),
        100.0 * steps.slowdown(),
        count(jitter.runs(), "step"),
        steps.quantile(0.5),
        100.0 * LONG,
        steps.quantile(LONG)
    )
}

pub(super) fn jitter_numbers(jitter: &Jitter, steps: &JitteredSteps) -> Value {
    json!({
        "share": jitter.share(),
        "runs": jitter.runs(),
        "seed": jitter.seed(),
        "mean_us": steps.mean(),
        "p05_us": steps.quantile(1.0 - LONG),
        "p50_us": steps.quantile(0.5),
        "p95_us": steps.quantile(LONG),
    })
}

/// What to do against failures, and what they cost, in a sentence; none where steps take no time.
pub(super) fn failure_sentence(failures: &Failures, step: Micros) -> Option<String> {
    let interval = failures.interval(step)?;
    Some(format!(
        "a failure every {}: a checkpoint every {} ({}; Young {}, Daly {}) keeps {:.1} % of all time for steps \
         that count (goodput)",
        long_time(failures.between()),
        count(interval.steps, "step"),
        long_time(interval.time),
        long_time(failures.young()),
        long_time(failures.daly()),
        100.0 * interval.goodput
    ))
}

pub(super) fn failure_numbers(failures: &Failures, step: Micros) -> Value {
    let mut numbers = json!({
        "mtbf_us": failures.between(),
        "checkpoint_us": failures.checkpoint(),
        "restart_us": failures.restart(),
        "young_us": failures.young(),
        "daly_us": failures.daly(),
    });
    if let Some(interval) = failures.interval(step) {
        numbers["checkpoint_steps"] = json!(interval.steps);
        numbers["goodput"] = json!(interval.goodput);
    }
    numbers
}
