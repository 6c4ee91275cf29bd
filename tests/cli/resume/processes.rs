//! Kills processes of a run at random moments while a launcher restarts it. `WORLD_RUN_KILLS=200 cargo test
//! --test cli resume::processes -- --nocapture` makes that many kills; without the variable there are four.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::killed::Random;
use super::{assert_same, command, losses, place, trained};
use crate::run;

/// A small training, saved after every other step so that many kills hit a write.
const RUN: &str = "--data text.txt --layers 2 --d-model 8 --heads 2 --seq 8 --batch 4 --micro 2 \
                   --dropout 0.1 --threads-per-stage 1 --warmup 2 --clip 0.5 --steps 40 \
                   --checkpoint-every 2 --checkpoint-keep 2 --quiet";

/// Trains [`RUN`] in one process without kills, as the reference.
fn whole(folder: &Path) {
    let flags: Vec<&str> = RUN.split_whitespace().collect();
    trained(folder, &[&flags[..], &["--out", "whole"]].concat());
}

fn launch(folder: &Path, processes: u64, restarts: u64, flags: &str) -> Command {
    let args = format!(
        "launch --processes {processes} --max-restarts {restarts} -- train {flags} --devices cpu"
    );
    run::command(folder, &args)
}

/// Child processes of a process.
fn children(of: &Child) -> Vec<String> {
    let parent = format!("PPid:\t{}", of.id());
    let all = fs::read_dir("/proc").unwrap();
    let is_child = |name: &String| {
        let status = fs::read_to_string(format!("/proc/{name}/status")).unwrap_or_default();
        status.lines().any(|line| line == parent)
    };
    let names = all.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter(is_child).collect()
}

/// Kills one of the launcher's processes, if there are any.
fn kill_one(launcher: &Child, random: &mut Random) {
    let children = children(launcher);
    if children.is_empty() {
        return;
    }
    let victim = &children[random.below(children.len() as u64) as usize];
    // The process may have ended meanwhile.
    let _ = Command::new("kill").args(["-9", victim]).output();
}

#[test]
fn killed_again_and_again_it_comes_to_the_same_by_itself() {
    let kills: u64 = std::env::var("WORLD_RUN_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let folder = place();
    let folder = folder.path();
    whole(folder);
    let begin = Instant::now();
    let output = launch(folder, 2, 0, &format!("{RUN} --out alike"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_same(folder, "alike", "whole");
    let usual = begin.elapsed();
    let (mut random, mut done, mut restarts) = (Random(kills), 0, 0);
    while done < kills {
        let own = format!("run-{done}");
        let mut launcher = launch(folder, 2, 9, &format!("{RUN} --out {own}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        for _ in 0..=random.below(2) {
            let wait = random.below(usual.as_micros() as u64);
            thread::sleep(Duration::from_micros(wait));
            kill_one(&launcher, &mut random);
            done += 1;
            assert!(launcher.try_wait().is_ok());
        }
        let ended = launcher.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{own}: {errors}");
        assert_same(folder, &own, "whole");
        restarts += errors.matches("started again").count();
    }
    println!("{done} kills, after which {restarts} times all processes were started again");
}

/// Resumed as one, three and four processes, with different stages.
#[test]
fn a_killed_run_is_resumed_by_another_number_of_processes() {
    let folder = place();
    let folder = folder.path();
    whole(folder);
    let mut random = Random(7);
    for processes in [1, 3, 4] {
        let own = format!("resumed-{processes}");
        let mut first = launch(folder, 2, 0, &format!("{RUN} --out {own}"));
        let mut first = first
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let metrics = folder.join(&own).join("metrics.jsonl");
        let lines = || fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
        while lines() < 7 && first.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        kill_one(&first, &mut random);
        let _ = first.wait().unwrap();
        let output = launch(folder, processes, 0, &format!("--resume {own} --quiet"));
        let output = { output }.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{processes}: {errors}");
        assert_same(folder, &own, "whole");
    }
}

/// Runs a command with the variables of a launcher that starts one process, after `restarts` restarts.
fn started(command: &mut Command, restarts: &str, most: &str) -> (Option<i32>, String) {
    let words = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RESTART_COUNT", restarts),
        ("TORCHELASTIC_MAX_RESTARTS", most),
    ];
    let output = command.envs(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

/// A restarted command line resumes the run that it started, and no other.
#[test]
fn a_command_that_is_started_again_goes_on_with_its_own_run() {
    let folder = place();
    let folder = folder.path();
    whole(folder);
    let run: Vec<&str> = RUN.split_whitespace().collect();
    let with = |more: &[&'static str]| [&run[..], more].concat();
    let again = with(&["--out", "whole"]);
    let (code, errors) = started(&mut command(folder, &again), "0", "3");
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("already holds a run"), "{errors}");
    let (code, errors) = started(&mut command(folder, &again), "1", "3");
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("all 40 steps are done"), "{errors}");
    // The first start failed because the folder holds another run.
    for other in [
        &["--lr", "0.5"][..],
        &["--optimizer", "sgd"],
        &["--seed", "9"],
    ] {
        let other = [&again[..], other].concat();
        let (code, errors) = started(&mut command(folder, &other), "1", "3");
        assert_eq!(code, Some(2), "{errors}");
        assert!(
            errors.contains("a run of another configuration"),
            "{errors}"
        );
    }
    assert_eq!(losses(folder, "whole").len(), 40);
    // Without --out the run could not be found again.
    for (restarts, most) in [("0", "3"), ("1", "3"), ("2", "0")] {
        let (code, errors) = started(&mut command(folder, &run), restarts, most);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains("name it with --out DIR"), "{errors}");
    }
    // Without a run in its folder the command starts one.
    let fresh = with(&["--out", "fresh"]);
    let (code, errors) = started(&mut command(folder, &fresh), "2", "3");
    assert_eq!(code, Some(0), "{errors}");
    assert_same(folder, "fresh", "whole");
    // A restarted fork resumes the fork.
    let fork = [
        "--resume", "whole", "--out", "fork", "--steps", "44", "--quiet",
    ];
    let (code, errors) = started(&mut command(folder, &fork), "0", "3");
    assert_eq!(code, Some(0), "{errors}");
    let (code, errors) = started(&mut command(folder, &fork), "1", "3");
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("all 44 steps are done"), "{errors}");
}
