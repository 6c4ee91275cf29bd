//! `launch`: its arguments, messages and output. `tests/world` covers failing processes.

use std::path::Path;

#[cfg(feature = "cli")]
use super::run::command;
use super::run::gpipe;

fn here() -> &'static Path {
    Path::new(".")
}

#[test]
fn wrong_flags_are_told() {
    for (args, why) in [
        ("launch -- env", "--processes"),
        ("launch --processes 0 -- env", "must be at least 1"),
        (
            "launch --processes two -- env",
            "`two` is not a whole number",
        ),
        ("launch --processes 2", "VERB"),
        ("launch --processes 2 env", "-- "),
        (
            "launch --processes 2 --nodes 2 -- env",
            "--nodes 2: needs --master HOST:PORT",
        ),
        (
            "launch --processes 2 --node-rank 1 -- env",
            "--node-rank 1: must be less than --nodes 1",
        ),
        (
            "launch --processes 2 --nodes 2 --node-rank 2 --master a:1 -- env",
            "--node-rank 2: must be less",
        ),
        ("launch --processes 2 --node-rank -1 -- env", "--node-rank"),
        (
            "launch --processes 2 --master head -- env",
            "must be HOST:PORT",
        ),
        (
            "launch --processes 2 --master head:0 -- env",
            "`0` is no port",
        ),
        (
            "launch --processes 2 --max-restarts x -- env",
            "`x` is not a whole number",
        ),
        ("launch --processes 70000 -- env", "at most 65536 processes"),
        (
            "launch --processes 2 -- launch --processes 2 -- env",
            "starts no other",
        ),
    ] {
        let output = gpipe(here(), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains(why), "{args}: {errors}");
        assert!(output.stdout.is_empty(), "{args}");
    }
}

/// Regression test: each process refused the arguments with a usage of its own.
#[test]
fn wrong_arguments_of_the_verb_are_told_once() {
    for (verb, wanted) in [
        ("nonsense", "error: unrecognized subcommand 'nonsense'"),
        (
            "train --stepz 3",
            "error: unexpected argument '--stepz' found",
        ),
    ] {
        let output = gpipe(here(), &format!("launch --processes 2 -- {verb}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.starts_with(wanted), "{errors}");
        assert!(!errors.contains("[rank"), "{errors}");
    }
}

/// Regression test: a flag with completed values accepted no others, though models may be files.
#[cfg(feature = "cli")]
#[test]
fn values_that_are_not_completed_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["model.pt2", "resnet50", "none.pt2"] {
        let train = format!(
            "launch --processes 2 -- train --model {model} --devices cpu --batch 3 --micro 4"
        );
        let output = gpipe(folder.path(), &train);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("[rank "), "each process reads it: {errors}");
        assert!(!errors.contains("possible values"), "{errors}");
    }
}

/// Errors that only the verb can detect are reported by its processes, with its exit code.
#[test]
fn what_a_verb_refuses_is_told_by_its_processes() {
    let output = gpipe(
        here(),
        "launch --processes 2 -- train --devices cpu --batch 3 --micro 4",
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("[rank ") && errors.contains("failed (exit code 2)"),
        "{errors}"
    );
    // Only one process prints the error.
    assert_eq!(errors.matches("] error: ").count(), 1, "{errors}");
}

#[cfg(feature = "cli")]
mod words {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use serde_json::Value;

    use super::super::run::printed;
    use super::{command, gpipe, here};

    #[test]
    fn env_says_which_process_it_is() {
        let text = printed(here(), "launch --processes 3 -- env");
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| line.contains("world  "))
            .collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].starts_with("[rank 1] world     rank 1 of 3 on "),
            "{text}"
        );
        assert!(
            lines[1].starts_with("[rank 2] world     rank 2 of 3 on "),
            "{text}"
        );
        // Rank 0's output is the same as without a launcher.
        assert!(lines[2].starts_with("world     rank 0 of 3 on "), "{text}");
        assert!(
            lines[2]
                .contains("(local rank 0), launched by gpipe-rs launch; they meet at 127.0.0.1:")
        );
    }

    #[test]
    fn on_several_hosts_ranks_go_on() {
        let args = "launch --processes 2 --nodes 3 --node-rank 2 --master [::1]:9 -- env --json";
        let text = printed(here(), args);
        let mut worlds: Vec<Value> = text
            .lines()
            .map(|line| {
                line.trim_start_matches("[rank 4] ")
                    .trim_start_matches("[rank 5] ")
            })
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["world"].take())
            .collect();
        worlds.sort_by_key(|world| world["rank"].as_u64());
        for (local, world) in worlds.iter().enumerate() {
            assert_eq!(world["rank"], 4 + local);
            assert_eq!(world["size"], 6);
            assert_eq!(world["local_rank"], local);
            assert_eq!(world["local_size"], 2);
            assert_eq!(world["master"], "::1:9");
            assert_eq!(world["launcher"], "gpipe-rs launch");
            assert_eq!(world["restarts"], 0);
        }
        assert_eq!(worlds.len(), 2);
    }

    #[test]
    fn words_of_others_and_none() {
        let world = |words: &[(&str, &str)]| {
            let mut own = command(here(), "env --json");
            let output = own.envs(words.iter().copied()).output().unwrap();
            assert!(output.status.success());
            let mut all: Value = serde_json::from_slice(&output.stdout).unwrap();
            all["world"].take()
        };
        let alone = world(&[]);
        assert_eq!(
            (&alone["size"], &alone["launcher"]),
            (&1.into(), &Value::Null)
        );
        let torchrun = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "head"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_RUN_ID", "7"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ];
        let words = world(&torchrun);
        assert_eq!(
            (&words["launcher"], &words["restarts"]),
            (&"torchrun".into(), &2.into())
        );
        let wrong = world(&[("RANK", "1")]);
        let error = wrong["error"].as_str().unwrap();
        assert!(
            error.starts_with("WORLD_SIZE is not set, but RANK is"),
            "{error}"
        );
    }

    /// All processes would do the same work.
    #[test]
    fn what_is_one_processes_work_is_refused_to_several() {
        for verb in [
            "profile --model gpt",
            "eval --run r",
            "generate --run r --prompt x",
        ] {
            let name = verb.split(' ').next().unwrap();
            let output = gpipe(here(), &format!("launch --processes 2 -- {verb}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb}: {errors}");
            let said = format!(
                "[rank 1] error: `{name}` is the work of one process (several can `train`), and this is \
                 rank 1 of 2, launched by gpipe-rs launch"
            );
            assert!(errors.contains(&said), "{errors}");
        }
        let mut wrong = command(here(), "train");
        let output = wrong.env("WORLD_SIZE", "2").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("RANK is not set, but WORLD_SIZE is"),
            "{errors}"
        );
    }

    fn as_rank(rank: usize, port: u16, folder: &Path, args: &str) -> Command {
        let mut own = command(folder, args);
        own.envs([("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "2")]);
        for word in ["RANK", "LOCAL_RANK"] {
            own.env(word, rank.to_string());
        }
        own.env("MASTER_PORT", port.to_string());
        own.stderr(Stdio::piped());
        own
    }

    fn free_port() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.local_addr().unwrap().port()
    }

    /// Regression test: a process was silent for the five minutes in which processes may meet.
    #[test]
    fn a_process_says_what_it_waits_for() {
        let port = free_port();
        let mut waits = as_rank(1, port, here(), "train").spawn().unwrap();
        let mut line = String::new();
        let errors = waits.stderr.take().unwrap();
        BufReader::new(errors).read_line(&mut line).unwrap();
        waits.kill().unwrap();
        waits.wait().unwrap();
        let said = format!("rank 1 waits for rank 0 and all others (2 in all) at 127.0.0.1:{port}");
        assert!(line.starts_with(&said), "{line}");
    }

    /// Regression test: rank 0's folder was taken silently.
    #[test]
    fn processes_of_other_folders_are_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("text.txt"),
            "to be or not to be ".repeat(40),
        )
        .unwrap();
        let port = free_port();
        let args = "train --data text.txt --layers 1 --d-model 8 --heads 2 --seq 8 --batch 4 --micro 2 \
                    --steps 1 --threads-per-stage 1 --devices cpu --out";
        let start = |rank: usize| {
            let args = format!("{args} run-{rank}");
            as_rank(rank, port, folder.path(), &args).spawn().unwrap()
        };
        for (rank, process) in [start(0), start(1)].into_iter().enumerate() {
            let output = process.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "rank {rank}: {errors}");
            let said = "the run of rank 1 is to be in `run-1`, and that of rank 0 in `run-0`";
            assert!(errors.contains(said), "rank {rank}: {errors}");
        }
        assert!(!folder.path().join("run-1").exists());
    }

    /// Regression test: other processes treated the error as a lost process, with an exit code on which
    /// launchers restart all.
    #[test]
    fn a_wrong_use_of_one_process_is_no_loss_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let args = "train --data synthetic --model mlp --steps 1 --devices cpu --batch 4 --micro 2 \
                    --threads-per-stage 1 --out run";
        assert!(gpipe(folder.path(), args).status.success());
        let port = free_port();
        let start = |rank: usize| {
            let own = as_rank(rank, port, folder.path(), args).spawn();
            own.unwrap()
        };
        let ended = [start(0), start(1)].map(|process| process.wait_with_output().unwrap());
        let errors = ended
            .each_ref()
            .map(|own| String::from_utf8_lossy(&own.stderr));
        let codes = ended.each_ref().map(|own| own.status.code());
        assert_eq!(codes, [Some(2), Some(1)], "{errors:?}");
        assert!(
            errors[0].contains("the folder already holds a run"),
            "{errors:?}"
        );
        assert!(
            errors[1].contains("rank 0") && errors[1].contains(" failed: "),
            "{errors:?}"
        );
    }
}

/// Regression test: the line about the missing half of libtorch was printed once per rank.
#[cfg(feature = "cli")]
#[test]
fn what_a_host_has_is_said_by_its_first_process() {
    let output = gpipe(here(), "launch --processes 2 -- env");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("libtorch  ").count(), 1, "{text}");
    assert!(text.contains("[rank 1] world     rank 1 of 2"), "{text}");
}
