//! Whether copies between devices are behind kernels.

use anyhow::Result;
use gpipe::partitioner::ScheduleKind;
use serde_json::{Value, json};

use super::job::{GPT_1B3, Job};
use super::report_support::Report;

const JOB: Job = Job {
    model: GPT_1B3,
    devices: 8,
    samples: 8,
    micro_batches: 16,
};

/// The layers of each device: those of the ends have more to do than a block.
const BALANCE: [usize; 8] = [4, 4, 3, 3, 3, 3, 3, 3];

pub(crate) fn measure() -> Result<Value> {
    let mut rows = serde_json::Map::new();
    for kind in [ScheduleKind::OneFOneB, ScheduleKind::GPipe] {
        let builder = JOB.builder().schedule(kind).balance(&BALANCE);
        let recompute = gpipe::Recompute::Always;
        let ran = JOB.run(builder.recompute(recompute))?;
        rows.insert(kind.name().into(), json!(ran.makespan / 1e3));
    }
    Ok(Value::Object(rows))
}

pub(crate) fn claims(report: &mut Report, with: &Value, without: &Value) {
    for (name, taken) in with.as_object().into_iter().flatten() {
        let ratio = taken.as_f64().zip(without[name].as_f64());
        let what =
            format!("{name} on 8 timed H100s: makespan over that of links that take no time");
        report.at_most(
            what,
            ratio.map_or(f64::NAN, |(with, without)| with / without),
            1.01,
            "",
        );
    }
}
