//! Parts that a process of these tests runs; they do nothing in the test run itself.

use std::env;
use std::io::Write as _;
use std::process::{Command, ExitCode, exit};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use gpipe::models::zoo::Zoo;
use gpipe::tch::{Kind, Tensor};
use gpipe::world::{Group, Lost, Times, Words, World};

use super::job::PART;

/// Patience in milliseconds.
pub(crate) const PATIENCE: &str = "WORLD_TEST_PATIENCE";
/// The rank that fails by itself.
pub(crate) const FAILS: &str = "WORLD_TEST_FAILS";
/// Name prefix of the pipes that processes wait at; the rank follows.
pub(crate) const GATE: &str = "WORLD_TEST_GATE";
/// The arguments of the launcher.
pub(crate) const LAUNCH: &str = "WORLD_TEST_LAUNCH";

/// The only test in a process that another one started.
#[test]
fn part() {
    let Ok(name) = env::var(PART) else {
        return;
    };
    exit(match name.as_str() {
        "ring" => in_world(ring),
        "tags" => in_world(tags),
        "quiet" => in_world(quiet),
        "again" => in_world(again),
        "train" => super::training::train(),
        "command" => super::commands::train(),
        "bad" => 3,
        "outlives" => {
            // The command itself makes sure that it ends with its launcher.
            let _ = gpipe::cli::run_with(["gpipe-rs", "env"], &Zoo::builtin());
            in_world(quiet)
        }
        "late" => {
            // The process counts as loading until the test opens the pipe.
            said_and_gated();
            let ended = code(gpipe::cli::run_with(["gpipe-rs", "env"], &Zoo::builtin()));
            print(&format!("ended with {ended}"));
            ended
        }
        "stopped" => {
            if env::var("RANK").unwrap() == "1" {
                let own = std::process::id().to_string();
                Command::new("kill").args(["-STOP", &own]).status().unwrap();
            }
            in_world(quiet)
        }
        "probed" => in_world(probed),
        other => panic!("no part `{other}`"),
    });
}

/// The command line in this program: `launch` starts it again, as one of the parts above.
#[test]
fn launcher() {
    let Ok(args) = env::var(LAUNCH) else {
        return;
    };
    let args = format!("gpipe-rs launch {args} -- --exact parts::part --nocapture");
    let ended = gpipe::cli::run_with(args.split_whitespace(), &Zoo::builtin());
    exit(code(ended));
}

/// Extracts the number of an `ExitCode` from its debug text, the only way to read it.
pub(crate) fn code(ended: ExitCode) -> i32 {
    let text = format!("{ended:?}");
    let digits = text.chars().filter(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// Prints a line immediately, bypassing the test harness.
pub(crate) fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

fn in_world(body: impl FnOnce(&World) -> Result<(), Lost>) -> i32 {
    let mut times = Times::default();
    if let Ok(patience) = env::var(PATIENCE) {
        times.patience = Duration::from_millis(patience.parse().unwrap());
    }
    let world = World::join_with(Words::from_env().unwrap(), times).unwrap();
    let ended = body(&world);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ended = match ended {
        Ok(()) => world.leave(),
        Err(lost) => {
            drop(world);
            Err(lost)
        }
    };
    match ended {
        Ok(()) => 0,
        Err(lost) => {
            print(&format!("lost: {lost}"));
            print(&format!("heard at {}", now.unwrap().as_nanos()));
            i32::from(lost.exit_code())
        }
    }
}

fn next(world: &World) -> usize {
    (world.rank() + 1) % world.size()
}

fn before(world: &World) -> usize {
    (world.rank() + world.size() - 1) % world.size()
}

/// Sends a number to the next rank and receives one from the previous.
fn round(world: &World, group: &Group, step: i64) -> Result<(), Lost> {
    let came = group.receive(&[512], Kind::Int64, before(world), 0)?;
    let own = Tensor::full([512], step, (Kind::Int64, gpipe::tch::Device::Cpu));
    let sent = group.send(&own, next(world), 0)?;
    let came = came.wait()?;
    assert_eq!(came.int64_value(&[511]), step);
    sent.wait().map(drop)
}

/// Endless rounds; one rank may fail in the middle.
fn ring(world: &World) -> Result<(), Lost> {
    let fails = env::var(FAILS).is_ok_and(|rank| rank == world.rank().to_string());
    let group = world.group()?;
    for step in 0.. {
        round(world, &group, step)?;
        if step == 20 {
            print("ready");
        }
        if step == 40 && fails {
            return Err(world.abort("stage 1, layer `block.3`, micro-batch 2: boom"));
        }
    }
    Ok(())
}

/// Messages with many tags, received in another order than sent, of many kinds and sizes, to and from each
/// rank.
fn tags(world: &World) -> Result<(), Lost> {
    const TAGS: i64 = 12;
    let group = world.group()?;
    let others = || (0..world.size()).filter(|rank| *rank != world.rank());
    let mut sent = Vec::new();
    for tag in 0..TAGS {
        for to in others() {
            let value = 100 * world.rank() as i64 + tag;
            let own = Tensor::full(
                [tag * 1000, 2],
                value,
                (Kind::Int64, gpipe::tch::Device::Cpu),
            );
            // A view that is not contiguous.
            sent.push(group.send(&own.tr(), to, tag as u32)?);
        }
    }
    for tag in (0..TAGS).rev() {
        for from in others() {
            let came = group.receive(&[2, tag * 1000], Kind::Int64, from, tag as u32)?;
            let came = came.wait()?;
            assert_eq!(came.size(), [2, tag * 1000]);
            let expected = 100 * from as i64 + tag;
            assert_eq!(
                i64::try_from(came.ne(expected).sum(Kind::Int64)).unwrap(),
                0
            );
        }
    }
    for transfer in sent {
        transfer.wait().map(drop)?;
    }
    print("all tags came");
    Ok(())
}

/// Only waits for an abort.
fn quiet(world: &World) -> Result<(), Lost> {
    let (told, heard) = mpsc::channel();
    world.on_abort(move |lost| told.send(lost.clone()).unwrap());
    print(&format!("process {}", std::process::id()));
    print("ready");
    Err(heard.recv().unwrap())
}

/// Prints its process id, and waits until the test opens its pipe.
fn said_and_gated() {
    print(&format!("process {}", std::process::id()));
    let gate = env::var(GATE).unwrap() + &env::var("RANK").unwrap();
    std::fs::read(gate).unwrap();
}

/// Connected, then probed by others, then used.
fn probed(world: &World) -> Result<(), Lost> {
    let group = world.group()?;
    said_and_gated();
    round(world, &group, 7)?;
    print("went through");
    Ok(())
}

/// The last rank kills itself, but not after a restart.
fn again(world: &World) -> Result<(), Lost> {
    let group = world.group()?;
    for step in 0..50 {
        round(world, &group, step)?;
        if step == 25 && world.restarts() == 0 && world.rank() + 1 == world.size() {
            let own = std::process::id().to_string();
            Command::new("kill").args(["-9", &own]).status().unwrap();
        }
    }
    print(&format!("went through after {} restarts", world.restarts()));
    Ok(())
}
