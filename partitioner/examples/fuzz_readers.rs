//! Damages valid profiles, plans and schedule CSVs for a given time, and reports faults: a panic, a
//! slow answer, or an accepted input that does not survive writing and reading again.
//!
//! `cargo run --release -p gpipe-partitioner --example fuzz_readers -- [seconds] [seed]`

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use gpipe_partitioner::{
    Bytes, LayerProfile, LayerTimes, Machine, Micros, Plan, PlanOptions, Profile, Schedule,
    ScheduleKind, Shape, plan,
};

/// splitmix64, so that a seed reproduces a run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Replacements for values.
const TOKENS: [&str; 30] = [
    "-1",
    "0",
    "1e18",
    "1e308",
    "1e999",
    "-0.0",
    "1000000000000000000",
    "18446744073709551615",
    "18446744073709551616",
    "NaN",
    "Infinity",
    "null",
    "true",
    "[]",
    "{}",
    "[[[[",
    "\"",
    "\\u0000",
    "\"\\ud800\"",
    ",",
    ":",
    "}",
    "]",
    "\n",
    "0F0",
    "0B0",
    "99999999F0",
    "0F99999999",
    "(0F1;1B0)OVERLAP_F_B",
    "0SEND_F0",
];

type Reader = fn(&[u8]) -> Result<(), String>;

/// Reads a profile; one that is accepted must be the same after writing and reading.
fn read_profile(text: &[u8]) -> Result<(), String> {
    match Profile::from_json(text, "profile.json") {
        Ok(profile) if Profile::from_json(profile.to_json(), "again").as_ref() != Ok(&profile) => {
            Err("the profile is not read back the same".into())
        }
        _ => Ok(()),
    }
}

/// Reads a plan; one that is accepted must be the same after writing and reading.
fn read_plan(text: &[u8]) -> Result<(), String> {
    match Plan::from_json(text, "plan.json") {
        Ok(plan) if Plan::from_json(plan.to_json(), "again").as_ref() != Ok(&plan) => {
            Err("the plan is not read back the same".into())
        }
        _ => Ok(()),
    }
}

/// Reads and checks a schedule; a legal one must be the same after writing and reading.
fn read_csv(text: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(text);
    let Ok(schedule) = Schedule::from_csv("fuzz", &text) else {
        return Ok(());
    };
    let again = Schedule::from_csv("fuzz", &schedule.to_csv());
    if schedule.check().is_ok() && again.is_err() {
        return Err("a legal schedule is not read back".into());
    }
    Ok(())
}

/// Valid inputs to start from.
fn seeds() -> anyhow::Result<Vec<(&'static str, Reader, Vec<u8>)>> {
    let time = Micros::new(12.5)?;
    let times = LayerTimes::new(time, time, time);
    let layer = |index: usize| {
        LayerProfile::new(format!("layer.{index}"), times)
            .with_bytes(Bytes(1 << 20), Bytes(1 << 22), Bytes(1 << 16))
            .with_temporary(Bytes(77))
            .with_curve(vec![(2, times), (16, times)])
    };
    let profile = Profile::new("cpu", 8, (0..4).map(layer).collect())?.with_input(Bytes(9));
    let mut seeds: Vec<(&'static str, Reader, Vec<u8>)> =
        vec![("profile", read_profile, profile.to_json().into_bytes())];
    let planned = plan(&profile, &PlanOptions::new(Machine::new(2)?))?;
    seeds.push(("plan", read_plan, planned.to_json().into_bytes()));
    for kind in ScheduleKind::ALL {
        for chunks in [1, 2] {
            let shape = Shape::new(2, 4).with_chunks(chunks);
            if let Ok(schedule) = kind.generate(shape) {
                seeds.push(("csv", read_csv, schedule.schedule().to_csv().into_bytes()));
            }
        }
    }
    Ok(seeds)
}

/// Makes one to eight edits: changes, removes or inserts a byte, inserts a token, doubles or cuts
/// off a piece.
fn damage(text: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(8) {
        let at = random.below(text.len() + 1);
        match random.below(7) {
            0 if at < text.len() => text[at] = random.next() as u8,
            1 if at < text.len() => {
                text.remove(at);
            }
            2 => text.insert(at, random.next() as u8),
            3 => {
                let token = TOKENS[random.below(TOKENS.len())];
                text.splice(at..at, token.bytes());
            }
            4 => replace_value(text, at, TOKENS[random.below(TOKENS.len())]),
            5 => {
                let end = (at + random.below(64)).min(text.len());
                let piece = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
            6 if random.below(8) == 0 => text.truncate(at),
            _ => {}
        }
    }
}

/// Replaces the text between two separators by a token.
fn replace_value(text: &mut Vec<u8>, at: usize, token: &str) {
    let separator = |byte: &u8| b":,[]{}\n;()".contains(byte);
    let Some(start) = text[at..]
        .iter()
        .position(separator)
        .map(|offset| at + offset + 1)
    else {
        return;
    };
    let length = text[start..]
        .iter()
        .position(separator)
        .unwrap_or(text.len() - start);
    text.splice(start..start + length, token.bytes());
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let seeds = seeds()?;
    let mut random = Random(seed);
    let (mut runs, mut findings) = (0_u64, 0_u64);
    let mut slowest = Duration::ZERO;
    std::panic::set_hook(Box::new(|_| {}));
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let (name, reader, text) = &seeds[random.below(seeds.len())];
        let mut text = text.clone();
        damage(&mut text, &mut random);
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| reader(&text)));
        let took = start.elapsed();
        let finding = match outcome {
            Err(_) => Some("a panic".to_owned()),
            Ok(Err(what)) => Some(what),
            Ok(Ok(())) if took > Duration::from_secs(2) => Some(format!("took {took:?}")),
            Ok(Ok(())) => None,
        };
        if let Some(what) = finding {
            findings += 1;
            println!("{name}: {what}\n{}\n", String::from_utf8_lossy(&text));
        }
        slowest = slowest.max(took);
        runs += 1;
    }
    println!(
        "{runs} inputs in {seconds} s from seed {seed}: {findings} findings, slowest {slowest:?}"
    );
    anyhow::ensure!(findings == 0, "{findings} findings");
    Ok(())
}
