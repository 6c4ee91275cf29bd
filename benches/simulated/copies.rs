//! Checks that copies between devices overlap with kernels.

use anyhow::Result;
use gpipe::partitioner::ScheduleKind;
use gpipe::settings::Recompute;
use serde_json::{Value, json};

use super::job::{GPT_1B3, GPT_ON_EIGHT as JOB};
use super::picture;
use super::report_support::Report;

/// Transfer time of an activation between two H100s in milliseconds: 4 bytes per number over 450 GB/s, plus 5
/// us.
fn hop() -> f64 {
    let numbers = JOB.samples * GPT_1B3.context * GPT_1B3.d_model;
    4.0 * numbers as f64 / 450e6 + 0.005
}

/// Layers per device: the loss and the projection before it cost as much as three blocks.
const BALANCE: [usize; 8] = [4, 4, 4, 3, 3, 3, 3, 2];

fn in_target(name: &str) -> String {
    format!("{}/simulated-{name}", env!("CARGO_TARGET_TMPDIR"))
}

pub(crate) fn traced_h100s() -> String {
    format!("8,time=h100,trace={}", in_target("trace.json"))
}

pub(crate) fn measure() -> Result<Value> {
    let mut rows = serde_json::Map::new();
    // The picture shows the last one.
    for kind in [ScheduleKind::ZbH1, ScheduleKind::OneFOneB] {
        let builder = JOB.builder().schedule(kind).balance(&BALANCE);
        let ran = JOB.run(builder.recompute(Recompute::Never))?;
        rows.insert(kind.name().into(), json!(ran.makespan / 1e3));
    }
    Ok(Value::Object(rows))
}

pub(crate) fn claims(report: &mut Report, with: &Value, without: &Value) -> Result<()> {
    // The first micro-batch's way there and the last gradient's way back cross idle devices.
    let way = 2.0 * (JOB.devices - 1) as f64 * hop();
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    for (name, taken) in with.as_object().into_iter().flatten() {
        let bound = number(&without[name]) + way;
        report.at_most(
            format!("{name} on 8 timed H100s, over the same where only the first and the last way take time"),
            number(taken) / bound,
            1.01,
            "",
        );
    }
    let makespan = with[ScheduleKind::OneFOneB.name()].as_f64().unwrap_or(0.0);
    let trace = std::fs::read_to_string(in_target("trace.json"))?;
    let (svg, hidden) = picture::of_the_end(&trace, makespan * 1e3)?;
    let file = in_target("copies.svg");
    std::fs::write(&file, svg)?;
    println!("the picture of a step of 1f1b is in {file}");
    report.row(json!({"copies_while_their_device_computes": hidden}));
    Ok(())
}
