//! Changes numbers in the JSON of exported programs at random: no step may access memory beyond a tensor.
//!
//! Each changed file is read, built, and trained one step on data of its shapes, in a process that places
//! protected pages after libtorch's memory (`guard.c`). One process tries many files; if a signal ends it,
//! the file is reported, and the next process continues after it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use gpipe::models::ExportedModel;
use gpipe::tch::{Kind, Tensor};
use gpipe::{Loss, Pipeline, Values, settings::on_values};

use crate::fixture::every;
use crate::forged::{Draws, Zip};
use crate::support::{cpus, single_threaded};

/// For a process that tries files: the first seed, and the end of the seeds.
const SEEDS: &str = "GPIPE_NUMBERS";
/// Marks the process that reads beyond a tensor on purpose.
const BEYOND: &str = "beyond";
/// A file that takes longer is skipped and not counted as wrong: it only asks for much work.
const LONGEST: Duration = Duration::from_mins(1);

/// A program, and the positions of numbers in its JSON.
struct Numbers {
    name: &'static str,
    zip: Zip,
    /// Entries and positions: weights and constants, nodes, and the rest.
    places: [Vec<(usize, Range<usize>)>; 3],
}

impl Numbers {
    fn new(name: &'static str) -> Self {
        let zip = Zip::open(name);
        let mut places = [const { Vec::new() }; 3];
        for (entry, (name, bytes)) in zip.0.iter().enumerate() {
            if Path::new(name).extension().is_none_or(|own| own != "json") {
                continue;
            }
            let values = b"\"tensor_values\"";
            let behind = bytes.windows(values.len()).rposition(|own| own == values);
            for place in numbers(bytes) {
                let kind = match behind {
                    None => 0,
                    Some(behind) if place.start < behind => 1,
                    Some(_) => 2,
                };
                places[kind].push((entry, place));
            }
        }
        Self { name, zip, places }
    }

    /// The file with changed numbers, and their description.
    fn changed(&self, draws: &mut Draws) -> (Vec<u8>, String) {
        let (mut zip, mut told) = (self.zip.clone(), self.name.to_owned());
        // Applied from the last position on, since a change shifts later positions.
        let mut chosen = BTreeMap::new();
        for _ in 0..[1, 1, 1, 1, 2, 3][draws.below(6)] {
            let places = &self.places[[0, 1, 1, 2][draws.below(4)]];
            let (entry, place) = places[draws.below(places.len())].clone();
            let own = &self.zip.0[entry].1[place.clone()];
            let other = other(std::str::from_utf8(own).unwrap(), draws);
            if draws.below(5) == 0 {
                // Changes all occurrences, so that the file does not contradict itself.
                for (entry, place) in self.places.iter().flatten() {
                    if self.zip.0[*entry].1[place.clone()] == *own {
                        chosen.insert((*entry, place.start), (place.end, other.clone()));
                    }
                }
            } else {
                chosen.insert((entry, place.start), (place.end, other));
            }
        }
        for ((entry, start), (end, other)) in chosen.into_iter().rev() {
            let bytes = &mut zip.0[entry].1;
            if told.len() < 300 {
                let own = String::from_utf8_lossy(&bytes[start..end]);
                told = format!("{told}; {own} is {other} at {start} of entry {entry}");
            }
            bytes.splice(start..end, other.into_bytes());
        }
        (zip.bytes(), told)
    }
}

/// Positions of numbers in JSON.
fn numbers(json: &[u8]) -> Vec<Range<usize>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < json.len() {
        let start = at;
        match json[at] {
            b'"' => {
                at += 1;
                while json[at] != b'"' {
                    at += 1 + usize::from(json[at] == b'\\');
                }
            }
            b'-' | b'0'..=b'9' => {
                let is_number = |byte: &&u8| b"+-.eE0123456789".contains(byte);
                at += json[at..].iter().take_while(is_number).count();
                all.push(start..at);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    all
}

/// A number other than `own`.
fn other(own: &str, draws: &mut Draws) -> String {
    let number: i64 = own.parse().unwrap_or(1);
    let near = [
        number.wrapping_add(1),
        number.wrapping_sub(1),
        number.wrapping_mul(2),
        number / 2,
        -number,
        number.wrapping_add(draws.below(64) as i64),
    ];
    let any = [0, 1, -1, 2, 3, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    match draws.below(8) {
        0..3 => near[draws.below(near.len())].to_string(),
        3..5 => any[draws.below(any.len())].to_string(),
        5 => draws.below(40).to_string(),
        6 => draws.below(1 << 20).to_string(),
        _ => ["0.5", "-1e30", "1e300", "0.0"][draws.below(4)].to_owned(),
    }
}

/// One step on a file: the mean of all outputs, and its backward. *Returns* the refusal.
fn step(path: &Path) -> Result<(), (&'static str, String)> {
    let refused = |error: &dyn std::fmt::Display| ("refused", format!("{error:#}"));
    let failed = |error: &dyn std::fmt::Display| ("failed", format!("{error:#}"));
    let file = ExportedModel::open(path).map_err(|error| refused(&error))?;
    let spec = file.spec(None).map_err(|error| refused(&error))?;
    let samples = file.micro_batch_size().unwrap_or(4);
    let (x, y) = spec.sample(samples, 0).map_err(|error| failed(&error))?;
    let pipe = Pipeline::builder(file.build())
        .devices(&cpus(1))
        .micro_batches(1)
        .threads_per_stage(1)
        .build();
    let mut pipe = pipe.map_err(|error| failed(&error))?;
    let loss = on_values(|out: &Values, _: &Values| -> anyhow::Result<Loss> {
        let mut sum = Tensor::from(0.0f32);
        for own in out.present().filter(|own| own.is_floating_point()) {
            sum = sum.f_add(&own.f_to_kind(Kind::Float)?.f_mean(Kind::Float)?)?;
        }
        Ok(Loss::mean(sum))
    });
    let report = pipe
        .train_step(x, y, loss)
        .map_err(|error| failed(&error))?;
    let _ = report.read().map_err(|error| failed(&error))?;
    Ok(())
}

/// Tries the files of some seeds, and prints each one's start and outcome.
fn attempt(seeds: Range<u64>) {
    single_threaded();
    panic::set_hook(Box::new(|_| {}));
    let all: Vec<_> = every().map(Numbers::new).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.pt2");
    for seed in seeds {
        let mut draws = Draws(seed);
        let (bytes, told) = all[draws.below(all.len())].changed(&mut draws);
        println!("\n@begin {seed} {told}");
        std::fs::write(&path, bytes).unwrap();
        let ended = panic::catch_unwind(AssertUnwindSafe(|| step(&path)));
        let (how, why) = match ended {
            Ok(Ok(())) => ("ran", String::new()),
            Ok(Err(told)) => told,
            Err(_) => ("panicked", String::new()),
        };
        println!("\n@end {how} {}", why.lines().next().unwrap_or_default());
    }
    println!("\n@done");
}

/// Outcomes of the files.
#[derive(Default)]
struct Told {
    counts: BTreeMap<String, usize>,
    /// Files that crashed the process or panicked.
    wrong: Vec<String>,
}

/// A process that tries files with guards around tensors.
struct Guarded {
    child: Child,
    lines: Receiver<String>,
}

impl Guarded {
    fn start(guard: &Path, side: &str, seeds: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "numbers::numbers_at_random_places_lead_nowhere_beyond_a_tensor",
            ])
            .args(["--nocapture", "--test-threads", "1"])
            .env(SEEDS, seeds)
            .env("LD_PRELOAD", guard)
            .env("GUARD", side)
            .env("OMP_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            lines
                .filter(|line| line.starts_with('@'))
                .all(|line| sender.send(line).is_ok())
        });
        Self { child, lines }
    }

    /// Records outcomes until the process ends. *Returns* the first untried seed, if any.
    fn watch(mut self, told: &mut Told) -> Option<u64> {
        let mut begun = None;
        loop {
            let line = self.lines.recv_timeout(LONGEST);
            let line = line
                .as_deref()
                .map(|line| line.split_once(' ').unwrap_or((line, "")));
            match line {
                Ok(("@begin", rest)) => begun = Some(rest.to_owned()),
                Ok(("@end", rest)) => {
                    let file = begun.take().unwrap_or_default();
                    let how = rest.split(' ').next().unwrap_or_default();
                    *told.counts.entry(how.to_owned()).or_default() += 1;
                    if rest.contains("panicked") {
                        told.wrong.push(format!("{rest}: {file}"));
                    }
                    if std::env::var("FUZZ_TOLD").is_ok() {
                        println!("{file}: {rest}");
                    }
                }
                Ok(_) => {
                    assert!(self.child.wait().unwrap().success());
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => self.child.kill().unwrap(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.child.wait().unwrap();
        let file = begun.unwrap_or_else(|| panic!("{status} before the first file"));
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        let how = if killed { "took too long" } else { "crashed" };
        *told.counts.entry(how.to_owned()).or_default() += 1;
        if !killed {
            told.wrong.push(format!("{status}: {file}"));
            println!("{status}: {file}");
        }
        let seed: u64 = file.split(' ').next().unwrap().parse().unwrap();
        Some(seed + 1)
    }
}

/// The library that guards tensors, built from `guard.c`.
fn guard() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("guard.so");
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &root.join("tests/exported/guard.c")])
        .status();
    assert!(built.unwrap().success());
    (folder, library)
}

/// Tries `FUZZ_NUMBERS` files (`make fuzz`), from the seed `FUZZ_FIRST` on.
#[test]
fn numbers_at_random_places_lead_nowhere_beyond_a_tensor() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Ok(seeds) = std::env::var(SEEDS) {
        if seeds == BEYOND {
            return read_beyond();
        }
        let (first, end) = seeds.split_once(':').unwrap();
        return attempt(first.parse().unwrap()..end.parse().unwrap());
    }
    let count = number("FUZZ_NUMBERS").unwrap_or(300);
    let first = number("FUZZ_FIRST").unwrap_or(0);
    let (_folder, guard) = guard();
    let (begin, mut told) = (Instant::now(), Told::default());
    for (side, share) in [
        ("above", first..first + count * 2 / 3),
        ("below", first + count * 2 / 3..first + count),
    ] {
        let mut next = Some(share.start);
        while let Some(from) = next.filter(|from| *from < share.end) {
            let seeds = format!("{from}:{}", share.end);
            next = Guarded::start(&guard, side, &seeds).watch(&mut told);
        }
    }
    println!(
        "{count} files with other numbers: {:?}, in {:.0?}",
        told.counts,
        begin.elapsed()
    );
    assert!(told.wrong.is_empty(), "{}", told.wrong.join("\n"));
    for how in ["refused", "ran", "failed"] {
        assert!(told.counts.contains_key(how), "none {how}");
    }
}

/// libtorch does not check the result of `_reshape_alias`.
fn read_beyond() {
    let small = Tensor::ones([5], (Kind::Float, gpipe::tch::Device::Cpu));
    let beyond = small.internal_reshape_alias([4096], [1]);
    println!("\n@begin 0 {}", beyond.sum(Kind::Float).double_value(&[]));
}

#[test]
fn who_reads_beyond_a_guarded_tensor_is_ended() {
    let (_folder, guard) = guard();
    let guarded = Guarded::start(&guard, "above", BEYOND);
    let output = guarded.child.wait_with_output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(11));
}
