//! The answer to a question.

use gpipe_partitioner::{DeviceId, ScheduleKind, render};
use serde_json::{Value, json};

use crate::Question;
use crate::simulated::Simulated;

/// Answers a [`Question`] in JSON with JSON: an object with the numbers of `gpipe-rs simulate --json`, their
/// texts and the picture (`svg`). Without a schedule, an object with `rows`, a list of such objects for all
/// schedules, the fastest first, without pictures. On failure, an object with `error`.
pub fn answer(question: &str) -> String {
    let answer = match serde_json::from_str::<Question>(question) {
        Ok(question) => answered(&question).unwrap_or_else(|error| json!({"error": error})),
        Err(error) => json!({"error": error.to_string()}),
    };
    answer.to_string()
}

fn answered(question: &Question) -> Result<Value, String> {
    let Some(kind) = question.kind()? else {
        return Ok(json!({"rows": rows(question)}));
    };
    let case = Simulated::new(question, kind)?;
    let mut answer = numbers(&case);
    answer["svg"] = json!(render::svg(&case.simulation.timeline));
    Ok(answer)
}

fn rows(question: &Question) -> Vec<Value> {
    let mut cases = Vec::new();
    let mut refused = Vec::new();
    for kind in ScheduleKind::ALL {
        match Simulated::compared(question, kind) {
            Ok(case) => cases.push(case),
            Err(error) => refused.push(json!({"schedule": kind.name(), "refused": error})),
        }
    }
    // Schedules that do not train do less work, and must not count as faster.
    cases.sort_by_key(|case| (!case.kind.trains(), case.simulation.makespan()));
    let best = cases.first().filter(|best| best.kind.trains());
    let best = best.map(|best| best.simulation.makespan());
    let row = |case: &Simulated| {
        let mut row = numbers(case);
        let fastest = case.kind.trains() && Some(case.simulation.makespan()) == best;
        row["fastest"] = json!(fastest);
        row
    };
    cases.iter().map(row).chain(refused).collect()
}

fn numbers(case: &Simulated) -> Value {
    let (simulation, timeline) = (&case.simulation, &case.simulation.timeline);
    let schedule = simulation.schedule();
    let devices = schedule.schedule().devices();
    let in_flight = (0..devices).map(|device| schedule.peak_in_flight_on(DeviceId(device)));
    let in_flight: Vec<f64> = in_flight.collect();
    let peaks = simulation.peak_bytes();
    let fullest = peaks.iter().copied().max().unwrap_or_default();
    let most = in_flight.iter().copied().fold(0.0, f64::max);
    json!({
        "schedule": case.kind.name(),
        "name": case.name(),
        "devices": devices,
        "chunks": case.chunks,
        "micro_batches": schedule.schedule().micro_batches(),
        "makespan_us": simulation.makespan(),
        "bubble_fraction": timeline.bubble_fraction(),
        "peak_in_flight": in_flight,
        "peak_bytes": peaks,
        "step": simulation.makespan().to_string(),
        "bubble": format!("{:.1} %", 100.0 * timeline.bubble_fraction()),
        "in_flight": format!("{most:.2}").trim_end_matches('0').trim_end_matches('.'),
        "memory": fullest.to_string(),
    })
}
