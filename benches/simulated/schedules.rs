//! Every schedule as planned and as measured.

use anyhow::Result;
use gpipe::partitioner::{ScheduleKind, plan};
use serde_json::{Value, json};

use super::job::GPT_ON_EIGHT as JOB;
use super::report_support::Report;

pub(crate) fn measure() -> Result<Value> {
    let measured = JOB.profile()?;
    let mut rows = Vec::new();
    for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
        let mut options = JOB.plan_options(&measured)?;
        options.schedule = Some(kind);
        let plan = match plan(&measured.profile, &options) {
            Ok(plan) => plan,
            Err(why) => {
                rows.push(json!({"schedule": kind.name(), "no_plan": why.to_string()}));
                continue;
            }
        };
        let ran = JOB.planned(&plan)?;
        let row = json!({
            "schedule": plan.schedule.name(),
            "chunks": plan.chunks,
            "recomputing": plan.recompute.iter().filter(|yes| **yes).count(),
            "offloading": plan.offload.iter().filter(|yes| **yes).count(),
            "cuda_graphs": plan.cuda_graphs,
            "predicted_ms": plan.step.get() / 1e3,
            "measured_ms": ran.makespan / 1e3,
            "own_times_ms": ran.own / 1e3,
            "host_share": ran.host_share,
            "bubble": plan.bubble_fraction,
        });
        eprintln!("{row}");
        rows.push(row);
    }
    Ok(json!({"host_share": measured.host_share, "rows": rows}))
}

/// Ratio of measured to predicted makespan, if there was a plan.
fn ratio(row: &Value) -> Option<f64> {
    Some(row["measured_ms"].as_f64()? / row["predicted_ms"].as_f64()?)
}

pub(crate) fn claims(report: &mut Report, measured: &Value) {
    for row in measured["rows"].as_array().into_iter().flatten() {
        let name = row["schedule"].as_str().unwrap_or_default();
        if let Some(ratio) = ratio(row) {
            let what = format!("{name} on 8 timed H100s: measured over simulated makespan");
            report.at_most(&what, ratio, 1.02, "");
            report.at_least(&what, ratio, 0.95, "");
        }
    }
}
