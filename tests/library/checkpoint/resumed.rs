//! A resumed run has the same bits as an uninterrupted one.

use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
use gpipe::optim::Sgd;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor};

use super::run::{Cut, PLAIN, Run, adamw, momentum};
use crate::support::{assert_same_bits, watched};

const CUTS: [Cut; 3] = [
    PLAIN,
    Cut {
        stages: 3,
        schedule: ScheduleKind::ZbH1,
        seed: 1,
    },
    Cut {
        stages: 2,
        schedule: ScheduleKind::Interleaved1F1B,
        seed: 2,
    },
];

fn assert_resumes(new: impl Fn(Cut) -> Run, what: &str) {
    let mut whole = new(PLAIN);
    let expected = whole.steps(1..=9);
    let folder = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    for (number, cut) in (0..).zip(CUTS) {
        let mut run = new(cut);
        if number > 0 {
            let found = run.restore(folder.path());
            assert_eq!(found.extras().step, number * 3, "{what}");
            assert_eq!(run.pipe.steps(), number * 3, "{what}");
        }
        losses.extend(run.steps(number * 3 + 1..=number * 3 + 3));
        run.save(folder.path(), number * 3 + 3);
        if number == 2 {
            assert_same_bits(&run.numbers(), &whole.numbers(), what);
        }
    }
    assert_eq!(losses, expected, "{what}");
}

#[test]
fn one_then_three_then_two_stages_with_every_optimizer() {
    watched(|| {
        assert_resumes(|cut| Run::new(cut, adamw()), "AdamW");
        assert_resumes(|cut| Run::new(cut, momentum()), "momentum");
        assert_resumes(|cut| Run::new(cut, Sgd::default()), "plain SGD");
        assert_resumes(Run::with_groups, "groups");
    });
}

#[test]
fn what_the_pipeline_and_the_optimizer_did_before_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let mut saved = Run::with_groups(PLAIN);
    saved.steps(1..=2);
    saved.save(folder.path(), 2);
    let mut other = Run::with_groups(CUTS[1]);
    other.steps(20..=24);
    other.accumulate(25);
    other.restore(folder.path());
    assert_eq!(other.steps(3..=5), saved.steps(3..=5));
    assert_same_bits(&other.numbers(), &saved.numbers(), "after both");
}

#[test]
fn gradients_that_wait_for_the_optimizer_are_saved_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = Run::new(PLAIN, adamw());
    whole.steps(1..=2);
    whole.accumulate(3);
    whole.save(folder.path(), 2);
    let mut resumed = Run::new(CUTS[1], adamw());
    resumed.restore(folder.path());
    assert_eq!(resumed.steps(4..=6), whole.steps(4..=6));
    assert_same_bits(
        &resumed.numbers(),
        &whole.numbers(),
        "two batches, one update",
    );
}

#[test]
fn saving_at_every_step_changes_nothing_and_saves_what_was_there_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut plain = Run::new(PLAIN, adamw());
    let mut saving = Run::new(
        Cut {
            seed: PLAIN.seed,
            ..CUTS[1]
        },
        adamw(),
    );
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap().keep(9);
    let mut after = Vec::new();
    for step in 1..=5 {
        assert_eq!(saving.step(step), plain.step(step));
        let (pipe, optimizer) = (&mut saving.pipe, &saving.optimizer);
        checkpointer
            .save(pipe, optimizer, Extras::new(step))
            .unwrap();
        // Training continues while the checkpoint is written.
        after.push(plain.numbers());
    }
    checkpointer.finish().unwrap();
    let listed = Checkpoint::list(folder.path()).unwrap();
    assert_eq!(listed.len(), 5);
    for (one, expected) in listed.into_iter().zip(after) {
        let weights = Checkpoint::open(one.path).unwrap().weights().unwrap();
        assert_same_bits(&weights, &expected, "at the time of the save");
    }
}

#[test]
fn extras_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(PLAIN, adamw());
    // The largest step that a manifest may have.
    let extras = Extras::new((1 << 53) - 1)
        .config("[train]\nname = \"ü\\u0007 \\\"x\\\"\"\n")
        .part(
            "data",
            serde_json::json!({"sample": u64::MAX, "x": [0.1, -1e300, null]}),
        )
        .part("loss_scale", 65536.0);
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
    checkpointer
        .save(&mut run.pipe, &run.optimizer, extras.clone())
        .unwrap();
    checkpointer.finish().unwrap();
    let found = Checkpoint::newest(folder.path()).unwrap();
    assert_eq!(found.extras(), &extras);
    assert_eq!(found.stages(), 1);
}

#[test]
fn shards_are_plain_safetensors_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::with_groups(CUTS[1]);
    run.steps(1..=2);
    run.save(folder.path(), 2);
    let mut labels = Vec::new();
    for stage in 0..3 {
        let path = folder
            .path()
            .join(format!("step-00000002/stage-{stage}.safetensors"));
        let bytes = std::fs::read(path).unwrap();
        let shard = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (label, view) in shard.tensors() {
            if let Some(name) = label.strip_prefix("parameters/") {
                let own = run
                    .numbers()
                    .into_iter()
                    .find(|(own, _)| own == name)
                    .unwrap();
                let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
                let read = Tensor::from_data_size(view.data(), &shape, Kind::Float);
                assert!(read.to_device(Device::Cpu).equal(&own.1), "{name}");
            }
            if label == "buffers/count.count" {
                assert_eq!(view.dtype(), safetensors::Dtype::I64);
            }
            labels.push(label);
        }
    }
    for expected in [
        "parameters/middle.weight",
        "buffers/norm.running_var",
        "buffers/count.count",
        "optimizer/head.weight/mean",
        "optimizer/head.weight/square",
        "optimizer/head.weight/steps",
        "optimizer/head.bias/momentum",
    ] {
        assert!(
            labels.iter().any(|label| label == expected),
            "{expected} in {labels:?}"
        );
    }
    assert!(
        !labels.iter().any(|label| label.contains("again.weight")),
        "tied: saved once"
    );
}
