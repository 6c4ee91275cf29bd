//! Choices that `plan` makes by itself, against the same plan without them.

use anyhow::Result;
use gpipe::models::Gpt;
use gpipe::partitioner::{PlanOptions, When, plan};
use gpipe::tch::Device;
use gpipe::{memory, profile::Profiled};
use serde_json::{Value, json};

use super::job::{GPT_1B3, Job};
use super::report_support::Report;

/// Small kernels, so that the host is the limit.
const SMALL: Job = Job {
    model: Gpt {
        context: 256,
        d_model: 512,
        heads: 8,
        blocks: 12,
        ..GPT_1B3
    },
    devices: 2,
    samples: 1,
    micro_batches: 8,
    large: false,
};

/// Wide blocks over a long context: more activations than memory, with enough operations per byte for the
/// link to the host to keep up.
const LONG: Job = Job {
    model: Gpt {
        context: 24_576,
        d_model: 8192,
        heads: 64,
        blocks: 7,
        ..GPT_1B3
    },
    devices: 8,
    samples: 1,
    micro_batches: 32,
    large: true,
};

pub(crate) fn graphs() -> Result<Value> {
    beside(&SMALL, |options| options.cuda_graphs = When::Never)
}

pub(crate) fn offload() -> Result<Value> {
    beside(&LONG, |options| options.offload = When::Never)
}

/// The plan, and the plan without the options that `forbid` disables.
fn beside(job: &Job, forbid: fn(&mut PlanOptions)) -> Result<Value> {
    let measured = job.profile()?;
    let options = job.plan_options(&measured)?;
    let mut without = options.clone();
    forbid(&mut without);
    Ok(json!({
        "chosen": planned(job, &measured, &options)?,
        "without": planned(job, &measured, &without)?,
    }))
}

fn planned(job: &Job, measured: &Profiled, options: &PlanOptions) -> Result<Value> {
    let plan = plan(&measured.profile, options)?;
    let peaks: Vec<f64> = plan.peak_bytes.iter().map(|bytes| gib(bytes.0)).collect();
    for device in 0..job.devices {
        memory::reset_device_peak(Device::Cuda(device))?;
    }
    eprintln!("{} {:?} {peaks:.1?}", plan.schedule, plan.offload);
    let ran = job.planned(&plan)?;
    let used =
        (0..job.devices).map(|device| Ok(gib(memory::of_device(Device::Cuda(device))?.peak)));
    let used = used.collect::<Result<Vec<f64>>>()?;
    Ok(json!({
        "schedule": plan.schedule.name(),
        "chunks": plan.chunks,
        "cuda_graphs": plan.cuda_graphs,
        "offload": plan.offload,
        "recompute": plan.recompute,
        "predicted_peaks_gib": peaks,
        "measured_peaks_gib": used,
        "predicted_ms": plan.step.get() / 1e3,
        "measured_ms": ran.makespan / 1e3,
        "host_share": ran.host_share,
    }))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

pub(crate) fn claims(report: &mut Report, name: &str, both: &Value) {
    let taken = |which: &str, what: &str| both[which][what].as_f64().unwrap_or(f64::NAN);
    let asked = match &both["chosen"][name] {
        Value::Array(stages) => stages.contains(&json!(true)),
        chosen => *chosen == json!(true),
    };
    report.at_least(
        format!("plans that choose {name}"),
        f64::from(u8::from(asked)),
        1.0,
        "",
    );
    report.at_most(
        format!("{name} as chosen by the plan, over the best plan without"),
        taken("chosen", "measured_ms") / taken("without", "measured_ms"),
        1.0,
        "",
    );
    for which in ["chosen", "without"] {
        let error = taken(which, "measured_ms") / taken(which, "predicted_ms") - 1.0;
        let what = format!("{name}, {which}: measured from predicted step");
        report.at_most(what, 100.0 * error.abs(), 5.0, "%");
    }
}
