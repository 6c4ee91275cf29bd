//! `gpipe-rs launch` with processes that are killed, fail, or refuse to end.

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::job::{PART, Process};
use super::parts::{GATE, LAUNCH, PATIENCE};

/// Starts the launcher, which starts this part.
fn launched(part: &str, args: &str) -> Process {
    Process::start(&mut launcher(part, args))
}

fn launcher(part: &str, args: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "parts::launcher", "--nocapture"])
        .env(LAUNCH, args)
        .env(PATIENCE, "120000")
        .env(PART, part);
    command
}

/// Creates pipes at which two processes wait; returns the common prefix of their names.
fn gates(folder: &Path) -> String {
    let name = folder.join("gate").display().to_string();
    for rank in 0..2 {
        let made = Command::new("mkfifo").arg(format!("{name}{rank}")).status();
        assert!(made.unwrap().success());
    }
    name
}

/// Starts two processes that wait at pipes, and waits until both do.
fn gated(part: &str, gates: &str) -> (Process, Vec<String>) {
    let mut launcher = Process::start(launcher(part, "--processes 2").env(GATE, gates));
    for ready in ["\nprocess", "[rank 1] process"] {
        launcher.wait_for(ready);
    }
    let all = processes(&launcher.printed());
    assert_eq!(all.len(), 2);
    (launcher, all)
}

fn open(gates: &str) {
    for rank in 0..2 {
        fs::write(format!("{gates}{rank}"), "").unwrap();
    }
}

/// The ids of the processes that have printed them.
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

/// No process is left training.
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

/// Regression test: a process being loaded was not told that its launcher had ended, and ran forever.
#[test]
fn processes_whose_launcher_was_killed_while_they_were_loaded_end() {
    let folder = tempfile::tempdir().unwrap();
    let gates = gates(folder.path());
    let (mut launcher, all) = gated("late", &gates);
    launcher.signal("-KILL");
    assert_eq!(launcher.finish().signal(), Some(9));
    assert!(all.iter().all(|process| is_there(process)));
    open(&gates);
    let begin = std::time::Instant::now();
    while all.iter().any(|process| is_there(process)) {
        assert!(
            begin.elapsed() < super::job::LIMIT,
            "{}",
            launcher.printed()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let printed = launcher.printed();
    // Rank 0 has the launcher's own output.
    assert!(printed.contains("ended with 143"), "{printed}");
}

/// Regression test: the launcher waited 300 s for a process that does not join.
#[test]
fn a_process_that_is_stopped_before_it_joins_is_told_and_killed() {
    let ended = launched("stopped", "--processes 2").finish();
    let printed = &ended.printed;
    let told = "rank 1 is stopped (signal 19), and the others wait for it: it is killed in 10 s";
    assert!(printed.contains(told), "{printed}");
    assert_eq!(ended.code(), Some(137), "{printed}");
    assert!(
        printed.contains("rank 1 was ended by signal 9"),
        "{printed}"
    );
}

/// The addresses at which a process listens.
fn listening(process: &str) -> Vec<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = links.filter_map(|own| fs::read_link(own.unwrap().path()).ok());
    let own: HashSet<_> = links.map(|own| own.display().to_string()).collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let waits =
        lines.filter(|line| line[3] == "0A" && own.contains(&format!("socket:[{}]", line[9])));
    let port = |line: Vec<&str>| u16::from_str_radix(line[1].split_once(':').unwrap().1, 16);
    waits
        .map(|line| SocketAddr::from(([127, 0, 0, 1], port(line).unwrap())))
        .collect()
}

/// Regression test: gloo kept every connection to its port, and ended the process by SIGABRT when it could
/// open no more.
#[test]
fn once_all_are_connected_nobody_else_gets_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    let gates = gates(folder.path());
    let (mut launcher, all) = gated("probed", &gates);
    // Rank 0 also has the store's port, to which processes may connect later.
    let second = processes(&launcher.printed().replace("\nprocess", ""));
    let [rank_1] = &second[..] else {
        panic!("{second:?} of {all:?}");
    };
    let ports = listening(rank_1);
    assert!(!ports.is_empty());
    for port in ports {
        for _ in 0..3 {
            let made = TcpStream::connect_timeout(&port, Duration::from_millis(300));
            assert!(made.is_err(), "{port} takes connections");
        }
    }
    open(&gates);
    let ended = launcher.finish();
    assert_eq!(ended.code(), Some(0), "{}", ended.printed);
    for line in ["\nwent through", "[rank 1] went through"] {
        assert!(ended.printed.contains(line), "{}", ended.printed);
    }
}
