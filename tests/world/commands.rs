//! The command as one of several processes: whatever ends one of them, all others end, with its name and the
//! exit code that tells a launcher what to do. `WORLD_KILLS=100 cargo test --test world commands --
//! --nocapture` ends a quarter each by SIGKILL, an error, a panic and a lack of memory, prints how long the
//! last process survives, and fails if that is more than a second; without the variable each happens once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};
use std::{env, fs};

use gpipe::models::zoo::{Entry, Instance, Synthetic, Zoo};
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::{Layer, Sequential, Values, layers::Context};

use super::job::{Ended, Job};
use super::kills::told;
use super::parts::print;
use super::training::FOLDER;

/// A layer's action, its rank, and its forward: `error:1:40`.
const DOES: &str = "WORLD_TEST_LAYER";

/// Stays in a layer forever.
const STAYS: &str = "stays";

/// The longest that the last process may survive, in milliseconds.
const LIMIT: f64 = 1000.0;

/// A linear layer that acts as [`DOES`] says, with a count of its forwards.
#[derive(Debug)]
struct Odd(nn::Linear, AtomicUsize);

/// The file that marks a rank as staying in its layer.
fn is_there(rank: &str) -> anyhow::Result<PathBuf> {
    Ok(Path::new(&env::var(FOLDER)?).join(format!("{STAYS}-{rank}")))
}

impl Layer for Odd {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let output = inputs.into_one()?.apply(&self.0).tanh();
        let forward = self.1.fetch_add(1, Ordering::SeqCst);
        if forward == 16 {
            print("ready");
        }
        let does = env::var(DOES).unwrap_or_default();
        let rank = env::var("RANK")?;
        let own = format!(":{rank}:{forward}");
        let all = does.split(' ');
        let Some(does) = all.clone().find_map(|does| does.strip_suffix(&own)) else {
            return Ok(output.into());
        };
        if does == STAYS {
            fs::write(is_there(&rank)?, "")?;
        } else {
            // Waits until the others stay in their layers.
            for other in all.filter_map(|does| does.strip_prefix(STAYS)) {
                while !is_there(&other[1..2])?.exists() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        print(&format!("{does} at {}", now.as_nanos()));
        match does {
            "error" => anyhow::bail!("the layer gives up"),
            "panic" => panic!("the layer panics"),
            "memory" => {
                let large = Tensor::f_zeros([1 << 46], (Kind::Float, Device::Cpu))?;
                Ok((output + large.sum(Kind::Float)).into())
            }
            _ => loop {
                thread::park();
            },
        }
    }
}

/// Runs the command with such a model.
pub(crate) fn train() -> i32 {
    let mut zoo = Zoo::builtin();
    let odd = Entry::new("odd", |_| {
        let model = ["a", "b", "c", "d"];
        let model = model.into_iter().fold(Sequential::new(), |model, name| {
            model.layer(name, |path| {
                let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
                Odd(linear, AtomicUsize::new(0))
            })
        });
        let (x, y) = (Synthetic::normal([8]), Synthetic::normal([8]));
        let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
        Ok(Instance::new(model, x, y, loss))
    });
    zoo.add(odd).unwrap();
    let folder = env::var(FOLDER).unwrap();
    let args = format!(
        "gpipe-rs train --model odd --data synthetic --batch 8 --micro 4 --steps 1000000 --devices cpu \
         --threads-per-stage 1 --checkpoint-every 4 --quiet --out {folder}/run"
    );
    super::parts::code(gpipe::cli::run_with(args.split_whitespace(), &zoo))
}

/// The error at the end of a process's output.
#[track_caller]
fn error(ended: &Ended) -> &str {
    let mut lines = ended.printed.lines();
    let line = lines.find_map(|line| line.strip_prefix("error: "));
    line.unwrap_or_else(|| panic!("no error: {}", ended.printed))
}

fn at(printed: &str, what: &str) -> Option<SystemTime> {
    let what = format!("{what} at ");
    let nanos = printed.lines().find_map(|line| line.strip_prefix(&what))?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos.parse().unwrap()))
}

/// Ends one of `size` processes in this way. *Returns* how long the last of them survives, in milliseconds.
#[track_caller]
fn one_ends(size: usize, kind: &str, (victim, forward): (usize, u64), others_do: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let does = match kind {
        "kill" => others_do.to_owned(),
        _ => format!("{kind}:{victim}:{forward} {others_do}"),
    };
    let variables = [
        (DOES, does.as_str()),
        (FOLDER, folder.path().to_str().unwrap()),
    ];
    let mut job = Job::start("command", size, &variables);
    let killed = (kind == "kill").then(|| {
        job.wait_for("ready");
        // Processes that stay in a layer must be there first.
        if others_do.is_empty() {
            thread::sleep(Duration::from_micros(forward * 500));
        } else {
            job.ranks[(victim + 1) % size].wait_for("stays at ");
        }
        job.ranks[victim].kill()
    });
    if killed.is_none() {
        job.ranks[victim].wait_for(&format!("{kind} at "));
    }
    let mut ends = job.all();
    let since = killed.or_else(|| at(&ends[victim].printed, kind)).unwrap();
    let last = ends.iter().map(|ended| ended.at).max().unwrap();
    let (code, words) = match kind {
        "kill" => (75, "is lost"),
        "error" => (1, "the layer gives up"),
        "panic" => (1, "the layer panics"),
        _ => (1, "memory"),
    };
    if killed.is_some() {
        ends.remove(victim);
    } else {
        let own = ends.remove(victim);
        assert_eq!(own.code(), Some(code), "{kind}: {}", own.printed);
        assert!(error(&own).contains(words), "{kind}: {}", own.printed);
        assert!(error(&own).contains("stage "), "{kind}: {}", own.printed);
    }
    for ended in &ends {
        assert_eq!(ended.code(), Some(code), "{kind}: {}", ended.printed);
        let said = error(ended);
        assert!(
            said.starts_with(&format!("rank {victim}")),
            "{kind}: {said}"
        );
        assert!(said.contains(words), "{kind}: {said}");
        assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
    }
    last.duration_since(since).unwrap().as_secs_f64() * 1e3
}

#[test]
fn whatever_ends_one_all_others_end_with_its_name() {
    let kills: u64 = env::var("WORLD_KILLS").map_or(4, |kills| kills.parse().unwrap());
    for kind in ["kill", "error", "panic", "memory"] {
        let size = |number: u64| if number.is_multiple_of(2) { 2 } else { 4 };
        let place = |number: u64| (number as usize / 2 % 4, 17 + number * 7919 % 50);
        let times = (0..kills / 4).map(|number| {
            let (victim, forward) = place(number);
            one_ends(size(number), kind, (victim % size(number), forward), "")
        });
        let times: Vec<f64> = times.collect();
        let longest = times.iter().copied().fold(0.0, f64::max);
        println!(
            "{kind}, {} times, until the last one has ended: {}",
            kills / 4,
            told(times)
        );
        // Other tests' load can delay it beyond a second.
        assert!(kills < 100 || longest <= LIMIT, "{kind}: {longest} ms");
    }
}

/// Regression test: a layer with a long computation kept its process from ending, and all processes that
/// waited for that one.
#[test]
fn nobody_waits_for_a_layer_that_another_one_is_in() {
    for kind in ["kill", "error"] {
        for victim in 0..2 {
            // The second process has the first micro-batch, and the first process the second.
            let forward = |rank| 33 - rank as u64;
            let other = 1 - victim;
            let stays = format!("{STAYS}:{other}:{}", forward(other));
            one_ends(2, kind, (victim, forward(victim)), &stays);
        }
    }
}

/// A checkpoint waits for the end of the step in which the others stay: a process that has written its part
/// must not wait for it.
#[test]
fn nobody_waits_for_a_checkpoint_that_nobody_can_approve() {
    one_ends(3, "error", (2, 32), &format!("{STAYS}:0:34 {STAYS}:1:33"));
}
