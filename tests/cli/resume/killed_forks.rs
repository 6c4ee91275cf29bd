//! Kills forks of a run while they begin.

use std::path::Path;
use std::process::Stdio;

use gpipe::checkpoint::Checkpoint;

use super::killed::{Random, killed_after, tenths};
use super::{assert_same, command, gpt, place, trained};

/// Files of a fork in order of creation; it may be killed as each appears.
const SIGNS: [&str; 6] = [
    "checkpoints",
    "checkpoints/.lock",
    "metrics.jsonl",
    "checkpoints/.writing-step-00000006",
    "checkpoints/step-00000006",
    "config.toml",
];

#[test]
fn wherever_a_fork_is_killed_it_never_begins_anew() {
    let place = place();
    let folder = place.path();
    let flags = ["--steps", "6", "--set", "lr.steps=9", "--out", "run"];
    trained(
        folder,
        &gpt(&[&["--devices", "cpu,cpu"], &flags[..]].concat()),
    );
    trained(folder, &fork("whole"));
    let wanted = tenths(3);
    let mut random = Random(wanted);
    let (mut kills, mut unsaved, mut forks) = (0, 0, 0);
    while kills < wanted {
        let name = format!("fork-{forks}");
        let own = folder.join(&name);
        forks += 1;
        // Until it is a run, it is created again in the same folder.
        while !is_run(&own) {
            let child = command(folder, &fork(&name)).stdout(Stdio::null()).spawn();
            let sign = random.below(SIGNS.len() as u64) as usize;
            let begun = || SIGNS[sign..].iter().any(|sign| own.join(sign).exists());
            if kills == wanted {
                assert!(child.unwrap().wait().unwrap().success(), "{name}");
            } else if killed_after(child.unwrap(), begun, &mut random) {
                kills += 1;
            }
            let saved = Checkpoint::newest(own.join("checkpoints"));
            unsaved += u64::from(saved.is_err());
            if is_run(&own) {
                let done = saved.unwrap().extras().step;
                assert!(done >= 6, "{name} begins after step {done}");
            }
        }
        trained(folder, &["--resume", &name, "--steps", "9"]);
        assert_same(folder, &name, "whole");
    }
    println!(
        "{kills} kills by SIGKILL of {forks} forks that begin: {unsaved} before their first checkpoint; \
         all went on after the step that they were made of, none from the beginning"
    );
}

fn fork(out: &str) -> Vec<&str> {
    vec!["--resume", "run", "--steps", "9", "--quiet", "--out", out]
}

/// Whether the fork can be resumed.
fn is_run(fork: &Path) -> bool {
    let saved = Checkpoint::list(fork.join("checkpoints")).unwrap();
    fork.join("config.toml").exists() || !saved.is_empty()
}
