//! What a CUDA device is asked to show: steps against PyTorch's, stages on one card, copies
//! behind computations, the host's share, training under a limit of memory. Writes one
//! JSON object (`--json FILE`, else to the output). See `benches/cuda/README.md`.
//!
//! Without a device it says why in words and measures nothing.

mod gpt2;
mod transfers;

use std::time::Instant;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// One measurement, by name.
type Case = (&'static str, fn() -> Result<Value>);

const CASES: [Case; 6] = [
    ("gpt2_one_stage", gpt2::one_stage),
    ("gpt2_two_stages_one_card", gpt2::two_stages),
    ("copies_behind_computation", transfers::hidden),
    ("host_share", gpt2::host_share),
    ("cuda_graphs", gpt2::graphs),
    ("gpt2_xl_under_a_limit", gpt2::under_a_limit),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let place = arguments.iter().position(|argument| argument == "--json");
    let path = place.and_then(|place| arguments.get(place + 1));
    let mut all = Map::new();
    match gpipe::cuda_available() {
        Err(why) => {
            println!("the CUDA benchmarks are skipped: {why}");
            all.insert("skipped".into(), json!(why.to_string()));
        }
        Ok(_) => {
            for (name, case) in CASES {
                eprintln!("{name} ...");
                // One that fails must not cost the others.
                let value = case().unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
                eprintln!("{value:#}");
                all.insert(name.into(), value);
            }
        }
    }
    let text = format!("{:#}\n", Value::Object(all));
    match path {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The median, least and most of so many runs in milliseconds, after some that do not
/// count.
fn timed(warm: usize, runs: usize, mut body: impl FnMut() -> Result<()>) -> Result<Value> {
    for _ in 0..warm {
        body()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        gpipe::tch::Cuda::synchronize(0);
        let begin = Instant::now();
        body()?;
        gpipe::tch::Cuda::synchronize(0);
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(json!({
        "median_ms": times[runs / 2],
        "least_ms": times[0],
        "most_ms": times[runs - 1],
        "runs": runs,
    }))
}

fn median(value: &Value) -> f64 {
    value["median_ms"].as_f64().unwrap_or(f64::NAN)
}
