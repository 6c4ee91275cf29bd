//! A process killed at any moment leaves a checkpoint to resume from.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};

use super::run::{Cut, PLAIN, Run, adamw};
use crate::support::assert_same_bits;
use gpipe::partitioner::ScheduleKind;

const FOLDER: &str = "GPIPE_TEST_KILLED";
const LAST: u64 = 400;

/// Trains to the end from where the last process was killed, saving at each step.
fn train(folder: &Path) {
    let mut checkpointer = Checkpointer::new(folder).unwrap().keep(2);
    let found = Checkpoint::newest(folder).unwrap();
    let begin = found.extras().step;
    let cut = Cut {
        stages: 1 + (begin % 3) as usize,
        schedule: ScheduleKind::OneFOneB,
        seed: begin,
    };
    let mut run = Run::new(cut, adamw());
    found.restore(&mut run.pipe, &mut run.optimizer).unwrap();
    for step in begin + 1..=LAST {
        run.step(step);
        checkpointer
            .save(&mut run.pipe, &run.optimizer, Extras::new(step))
            .unwrap();
    }
    checkpointer.finish().unwrap();
}

fn child(folder: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoint::killed::a_run_killed_again_and_again_ends_with_the_same_bits",
        ])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_run_killed_again_and_again_ends_with_the_same_bits() {
    if let Some(folder) = env::var_os(FOLDER) {
        return train(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut whole = Run::new(PLAIN, adamw());
    whole.save(folder.path(), 0);
    whole.steps(1..=LAST);
    let (mut kills, mut reached) = (0, 0);
    loop {
        let mut process = child(folder.path());
        // At some moment after its first save: different for each run.
        let pause = Duration::from_millis(5 + kills * 37 % 90);
        let ended = loop {
            if let Some(status) = process.try_wait().unwrap() {
                assert!(status.success(), "after {kills} kills");
                break true;
            }
            let newest = Checkpoint::list(folder.path()).unwrap().pop().unwrap();
            if newest.step > reached && kills < 12 {
                thread::sleep(pause);
                process.kill().unwrap();
                process.wait().unwrap();
                break false;
            }
            thread::sleep(Duration::from_millis(2));
        };
        let newest = Checkpoint::newest(folder.path()).unwrap().extras().step;
        assert!(newest >= reached, "went back from {reached} to {newest}");
        reached = newest;
        if ended {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 5, "killed only {kills} times");
    let mut last = Run::new(PLAIN, adamw());
    let found = last.restore(folder.path());
    assert_eq!(found.extras().step, LAST);
    assert_same_bits(&last.numbers(), &whole.numbers(), "after all kills");
    assert_eq!(last.step(LAST + 1), whole.step(LAST + 1));
}
