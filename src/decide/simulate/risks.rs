//! Risks of a long run: jitter of action times, and failures.

use gpipe_partitioner::words::{count, given_time, long_time};
use gpipe_partitioner::{Failures, Jitter, JitteredSteps, Micros, Risk, SweepOutcome, SweepPoint};
use serde_json::{Value, json};

use super::super::names::heading::RISKS;
use super::super::{Failure, input};

/// Share of steps that are shorter than the long ones.
const LONG: f64 = 0.95;

/// Flags of jitter and failures.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = RISKS)]
pub(super) struct Risks {
    /// How much the times of passes vary (standard deviation), such as 5%. Mean and quantiles of many steps say
    /// what that costs.
    #[arg(long, value_name = "SHARE", value_parser = input::share)]
    jitter: Option<f64>,
    /// How many steps with jitter are simulated.
    #[arg(
        long, hide_short_help = true, value_name = "N", default_value = "200", requires = "jittery", allow_negative_numbers = true,
        value_parser = input::at_least_one
    )]
    jitter_runs: usize,
    /// What jitter is drawn from: the same seed gives the same numbers.
    #[arg(
        long,
        hide_short_help = true,
        value_name = "N",
        default_value = "0",
        requires = "jittery"
    )]
    jitter_seed: u64,
    /// Mean time between failures that stop the run, such as 6h. It says how often to write a checkpoint
    /// (Young, Daly), and the goodput. Of n devices it is 1/n of one device's.
    #[arg(long, value_name = "TIME", requires = "checkpoint_time", value_parser = input::micros)]
    mtbf: Option<Micros>,
    /// How long writing a checkpoint holds training up.
    #[arg(long, value_name = "TIME", requires = "failing", value_parser = input::micros)]
    checkpoint_time: Option<Micros>,
    /// How long it takes from a failure to the first step again.
    #[arg(long, value_name = "TIME", default_value = "0", requires = "failing", value_parser = input::micros)]
    restart_time: Micros,
}

impl Risks {
    pub(super) fn jitter(&self) -> Result<Option<Jitter>, Failure> {
        self.jitter.map(|share| self.jitter_of(share)).transpose()
    }

    fn jitter_of(&self, share: f64) -> Result<Jitter, Failure> {
        let jitter = Jitter::new(share, self.jitter_runs, self.jitter_seed);
        jitter.map_err(|error| Failure::Usage(format!("--jitter: {error}")))
    }

    pub(super) fn failures(&self) -> Result<Option<Failures>, Failure> {
        self.mtbf
            .map(|between| self.failures_of(between))
            .transpose()
    }

    fn failures_of(&self, between: Micros) -> Result<Failures, Failure> {
        let missing = || {
            let why = "--mtbf needs what a checkpoint takes: --checkpoint-time, such as 30s";
            Failure::Usage(why.to_owned())
        };
        let checkpoint = self.checkpoint_time.ok_or_else(missing)?;
        let failures = Failures::new(between, checkpoint, self.restart_time);
        failures
            .map_err(|_| Failure::Usage("--mtbf: must be more than no time, such as 6h".to_owned()))
    }

    /// Returns every combination of these shares of jitter and times between failures, or of the flags' own.
    pub(super) fn swept(&self, jitter: &[f64], mtbf: &[Micros]) -> Result<Vec<Risk>, Failure> {
        let jitter: Vec<Option<Jitter>> = if jitter.is_empty() {
            vec![self.jitter()?]
        } else {
            let each = jitter.iter().map(|&share| self.jitter_of(share).map(Some));
            each.collect::<Result<_, _>>()?
        };
        let failures: Vec<Option<Failures>> = if mtbf.is_empty() {
            vec![self.failures()?]
        } else {
            let each = mtbf
                .iter()
                .map(|&between| self.failures_of(between).map(Some));
            each.collect::<Result<_, _>>()?
        };
        let pairs = jitter.iter().flat_map(|&jitter| {
            let each = failures.iter();
            each.map(move |&failures| Risk { jitter, failures })
        });
        Ok(pairs.collect())
    }
}

/// Describes the jitter, and the columns with the mean step and with late steps, in a sentence.
pub(super) fn jitter_note(jitter: &Jitter, deviation: &str, mean: &str) -> String {
    format!(
        "what a device does with a micro-batch in one pass, forward or backward, takes its time \
         multiplied by a random factor (log-normal, mean 1, standard deviation {deviation}); `{mean}` is the mean of {} (seed {}), and 95 % of them take no \
         longer than `95 % of steps within`",
        count(jitter.runs(), "simulated step"),
        jitter.seed()
    )
}

/// Describes the column `goodput` in a sentence; `every` says how often there is a failure, and `often` how
/// often checkpoints are written.
pub(super) fn goodput_note(failures: &Failures, every: &str, often: &str) -> String {
    let restart = match failures.restart() {
        Micros::ZERO => String::new(),
        restart => format!(", {} for a restart", given_time(restart)),
    };
    format!(
        "`goodput` is the share of all time that goes into steps whose work is kept, with a failure {every}, \
         {} for a checkpoint{restart}, and a checkpoint {often}, which is best",
        given_time(failures.checkpoint())
    )
}

/// Describes the cost of jitter in a sentence.
pub(super) fn jitter_sentence(jitter: &Jitter, steps: &JitteredSteps) -> String {
    format!(
        "a step takes {} on average, {:.1} % more, where passes vary by {:.1} %; half of {} take at \
         most {}, {:.0} % at most {}",
        steps.mean(),
        100.0 * steps.slowdown(),
        100.0 * jitter.share(),
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
        "bubble_fraction": steps.bubble_fraction(),
        "p05_us": steps.quantile(1.0 - LONG),
        "p50_us": steps.quantile(0.5),
        "p95_us": steps.quantile(LONG),
    })
}

/// Describes the best checkpoint interval and the goodput in a sentence; none if steps take no time.
pub(super) fn failure_sentence(failures: &Failures, step: Micros) -> Option<String> {
    let interval = failures.interval(step)?;
    Some(format!(
        "with one every {}, a checkpoint every {} ({}; Young {}, Daly {}) keeps {:.1} % of all time for steps \
         that count (goodput)",
        given_time(failures.between()),
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

/// Adds the jitter and failures of a point of a sweep to its numbers.
pub(super) fn add_to(numbers: &mut Value, point: &SweepPoint, own: &SweepOutcome) {
    if let (Some(jitter), Some(steps)) = (&point.risk.jitter, own.jittered) {
        numbers["jitter"] = json!({
            "share": jitter.share(),
            "runs": jitter.runs(),
            "seed": jitter.seed(),
            "mean_us": steps.mean,
            "p95_us": steps.late,
            "bubble_fraction": steps.bubble_fraction,
        });
    }
    if let Some(failures) = &point.risk.failures {
        numbers["failures"] = failure_numbers(failures, own.step());
    }
}
