//! `gpipe-rs launch` with processes that are killed, fail, or do not want to end.

use std::process::Command;

use super::job::{PART, Process};
use super::parts::{LAUNCH, PATIENCE};

/// Starts the launcher, which starts this part.
fn launched(part: &str, args: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "parts::launcher", "--nocapture"])
        .env(LAUNCH, args)
        .env(PATIENCE, "120000")
        .env(PART, part);
    Process::start(&mut command)
}

/// The numbers of the processes that have said them.
fn processes(printed: &str) -> Vec<String> {
    let numbers = printed.split("process ").skip(1);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect();
    numbers
        .map(digits)
        .filter(|text: &String| !text.is_empty())
        .collect()
}

fn is_there(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn a_killed_process_has_all_started_again() {
    let ended = launched("again", "--processes 3 --max-restarts 1").finish();
    let printed = &ended.printed;
    assert_eq!(ended.code(), Some(0), "{printed}");
    assert!(
        printed.contains(
            "rank 2 was ended by signal 9: all processes are started again (restart 1 of 1)"
        ),
        "{printed}"
    );
    assert!(printed.contains("lost: rank 2 on `"), "{printed}");
    for line in ["\nwent", "[rank 1] went", "[rank 2] went"] {
        let line = format!("{line} through after 1 restarts");
        assert!(printed.contains(&line), "{printed}");
    }
}

#[test]
fn without_restarts_the_exit_code_says_how_the_first_one_ended() {
    let ended = launched("again", "--processes 3").finish();
    assert_eq!(ended.code(), Some(137), "{}", ended.printed);
    assert!(
        ended
            .printed
            .contains("error: rank 2 was ended by signal 9"),
        "{}",
        ended.printed
    );
    let ended = launched("bad", "--processes 2 --max-restarts 5").finish();
    assert_eq!(ended.code(), Some(3), "{}", ended.printed);
    assert!(
        !ended.printed.contains("started again"),
        "{}",
        ended.printed
    );
}

#[test]
fn ctrl_c_ends_all_and_nothing_is_started_again() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut launcher = launched("quiet", "--processes 3 --max-restarts 5");
        for ready in ["\nready", "[rank 1] ready", "[rank 2] ready"] {
            launcher.wait_for(ready);
        }
        let all = processes(&launcher.printed());
        assert_eq!(all.len(), 3);
        launcher.signal(signal);
        let ended = launcher.finish();
        assert_eq!(ended.code(), Some(code), "{}", ended.printed);
        assert!(
            !ended.printed.contains("started again"),
            "{}",
            ended.printed
        );
        assert!(!all.iter().any(|process| is_there(process)));
    }
}

/// Nobody is left behind who trains for ever.
#[test]
fn a_killed_launcher_takes_its_processes_with_it() {
    let mut launcher = launched("outlives", "--processes 2");
    for ready in ["\nready", "[rank 1] ready"] {
        launcher.wait_for(ready);
    }
    let all = processes(&launcher.printed());
    assert_eq!(all.len(), 2);
    launcher.signal("-KILL");
    assert_eq!(launcher.finish().signal(), Some(9));
    let begin = std::time::Instant::now();
    while all.iter().any(|process| is_there(process)) {
        assert!(
            begin.elapsed() < super::job::LIMIT,
            "{}",
            launcher.printed()
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
