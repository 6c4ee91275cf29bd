//! Tests of processes killed at a disk operation: before, while and after a checkpoint is sealed.
//!
//! `CHECKPOINT_KILLS=all cargo test --lib checkpoint::ranks::kills` kills every rank at every
//! operation; without the variable, only some kills are tested.

use std::env;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};
use std::time::{Duration, Instant};

use super::super::disk::RealDisk;
use super::super::faults::{Fault, Faulty, names};
use super::super::together::Together;
use super::super::{Checkpointer, lock};
use super::{newest, target, write_alone, write_together};
use gpipe_torch::testing::free_port;
use gpipe_torch::world::{Words, World};

const SIZE: usize = 3;
/// Environment of the child: the folder, and the number of the operation at which it is killed.
const FOLDER: &str = "CHECKPOINT_TEST_FOLDER";
const AT: &str = "CHECKPOINT_TEST_AT";

/// Exit code of a process that was told of a lost one.
const HEARD: i32 = 75;

/// The child process, which writes its part of a checkpoint. Without the environment, it does nothing.
#[test]
fn part() {
    let (Ok(folder), Ok(at)) = (env::var(FOLDER), env::var(AT)) else {
        return;
    };
    let world = World::join(Words::from_env().unwrap()).unwrap();
    let together = Together::all(&world).unwrap();
    // A process that is still joining the world waits for its store as long as a meeting may take.
    let there = together.agree(Ok(()));
    let disk = Faulty::new(Fault::Killed, at.parse().unwrap());
    let to = target(disk, folder.as_ref(), 1, &together);
    // Other errors than a lost process end with another code.
    let code = match there.and_then(|()| write_together(&to, 2)) {
        Ok(saved) => {
            assert_eq!(saved.unwrap().step, 2);
            match world.leave() {
                Ok(()) => 0,
                Err(lost) => {
                    eprintln!("{lost}");
                    lost.exit_code().into()
                }
            }
        }
        Err(error) => {
            eprintln!("{error}");
            let lost = error.lost().unwrap().clone();
            drop(world);
            lost.exit_code().into()
        }
    };
    exit(code);
}

/// The processes of one run, killed when dropped.
struct Job(Vec<Child>);

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets three processes write step 2, and kills one.
///
/// # Errors
/// None was killed; describes how each ended.
fn run(folder: &Path, victim: usize, at: usize) -> Result<(), String> {
    let port = free_port().to_string();
    let mut said: Vec<_> = (0..SIZE).map(|_| tempfile::tempfile().unwrap()).collect();
    let start = |rank: usize| {
        let at = if rank == victim { at } else { usize::MAX };
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "checkpoint::ranks::kills::part", "--nocapture"])
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", SIZE.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env(FOLDER, folder)
            .env(AT, at.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::from(said[rank].try_clone().unwrap()))
            .spawn()
            .unwrap()
    };
    let mut job = Job((0..SIZE).map(start).collect());
    let begin = Instant::now();
    let (mut killed, mut ends) = (false, Vec::new());
    for (rank, child) in job.0.iter_mut().enumerate() {
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            let what = format!("rank {rank} hangs: rank {victim} was killed at {at}");
            assert!(begin.elapsed() < Duration::from_mins(1), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        };
        if status.signal() == Some(9) {
            assert_eq!(rank, victim);
            killed = true;
        } else {
            let mut told = String::new();
            said[rank].rewind().unwrap();
            said[rank].read_to_string(&mut told).unwrap();
            ends.push(format!("rank {rank} ended with {status}: {told}"));
            let is_one = matches!(status.code(), Some(0 | HEARD));
            assert!(is_one, "rank {victim} at {at}: {ends:?}");
        }
    }
    if killed { Ok(()) } else { Err(ends.join("\n")) }
}

/// Kills a process, and restarts the run. *Returns* the newest checkpoint.
///
/// # Errors
/// None was killed; describes how each process ended.
fn kill(victim: usize, at: usize) -> Result<u64, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_alone(path, 1);
    let killed = run(path, victim, at);
    let step = newest(path);
    drop(Checkpointer::new(path).unwrap());
    assert_eq!(newest(path), step, "rank {victim} at {at}");
    let left = names(path).into_iter().filter(|name| name != lock::FILE);
    let left: Vec<_> = left.collect();
    assert!(
        left.iter().all(|name| name.starts_with("step-")),
        "{left:?}"
    );
    // All processes again, as after a restart.
    let again = target(RealDisk, path, 1, &Together::alone());
    write_together(&again, 2).unwrap();
    assert_eq!(newest(path), 2);
    killed.map(|()| step)
}

#[test]
fn a_kill_anywhere_leaves_a_whole_checkpoint() {
    if env::var("CHECKPOINT_KILLS").is_ok_and(|kills| kills == "all") {
        for victim in 0..SIZE {
            let steps: Vec<_> = (0..).map_while(|at| kill(victim, at).ok()).collect();
            println!(
                "rank {victim} was killed at {} operations: {steps:?}",
                steps.len()
            );
            assert!(steps.len() > 5 && steps.is_sorted());
            assert_eq!(steps.contains(&2), victim == 0);
        }
        return;
    }
    // Rank 0 writes two shards in twelve operations, manifest and folder in four; the next one renames
    // the folder.
    for (victim, at, step) in [
        (0, 4, 1),
        (0, 13, 1),
        (0, 16, 1),
        (0, 17, 2),
        (1, 3, 1),
        (2, 0, 1),
    ] {
        assert_eq!(kill(victim, at), Ok(step), "rank {victim} at {at}");
    }
}
