//! Tests of a checkpoint opened by several processes: each opens its part, and all or none succeed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tch::nn::{self, LinearConfig};
use tch::{Kind, Tensor};

use super::super::extras::Extras;
use super::super::{Checkpoint, CheckpointError, Checkpointer, Needs};
use super::{STAGES, write_alone};
use gpipe_torch::testing::ranks;
use gpipe_torch::world::World;
use gpipe_torch::{AdamW, Optimizer, Pipeline, Sequential};

/// The stage names of a rank of two: the first three or the others.
fn names(rank: usize) -> Needs {
    let own = if rank == 0 { 0..3 } else { 3..STAGES };
    Needs::Names(own.map(|stage| format!("layer.{stage}.weight")).collect())
}

/// Flips a bit of a byte, counted from the end.
fn damage(path: &Path, from_end: usize) {
    let mut bytes = fs::read(path).unwrap();
    let place = bytes.len() - from_end;
    bytes[place] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn shard(folder: &Path, step: u64, stage: usize) -> PathBuf {
    folder.join(format!("step-{step:08}/stage-{stage}.safetensors"))
}

/// Step of the newest; step of the newest intact one, with the errors of others.
type Opened = (Result<u64, String>, Result<(u64, Vec<String>), String>);

/// Results of two ranks that open the newest, and the newest intact checkpoint.
fn opened(folder: &Path, needs: fn(usize) -> Needs) -> Vec<Opened> {
    let folder = folder.to_owned();
    ranks(2, move |world| {
        let needs = || needs(world.rank());
        let newest = Checkpoint::newest_in_world(&folder, &world, needs());
        let intact = Checkpoint::newest_intact_in_world(&folder, &world, needs());
        world.leave().unwrap();
        let step = |found: &Checkpoint| found.extras().step;
        let said = |error: CheckpointError| {
            assert!(error.is_damage(), "{error}");
            error.to_string()
        };
        let intact = intact.map(|(found, wrong)| {
            let wrong = wrong.into_iter().map(said).collect();
            (step(&found), wrong)
        });
        (
            newest.map(|found| step(&found)).map_err(said),
            intact.map_err(said),
        )
    })
}

#[test]
fn a_rank_verifies_what_it_needs_and_does_not_notice_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    for step in [1, 2] {
        write_alone(folder.path(), step);
    }
    let of_four = |_| Needs::Names(BTreeSet::from(["layer.4.weight".to_owned()]));
    let both = [(Ok(2), Ok((2, Vec::new()))), (Ok(2), Ok((2, Vec::new())))];
    assert_eq!(opened(folder.path(), names), both);
    assert_eq!(opened(folder.path(), |_| Needs::Share), both);
    // No rank needs this shard.
    damage(&shard(folder.path(), 2, 1), 1);
    assert_eq!(opened(folder.path(), of_four), both);
    // One rank needs it, and all follow its result.
    for needs in [names, |_| Needs::Share] {
        let told = opened(folder.path(), needs);
        assert_eq!(told[0], told[1]);
        let (newest, intact) = &told[0];
        let newest = newest.as_ref().unwrap_err();
        let (step, wrong) = intact.as_ref().unwrap();
        assert_eq!((step, &wrong[..]), (&1, &[newest.clone()][..]));
        assert!(
            newest.contains("stage-1.safetensors: the checksum is wrong"),
            "{newest}"
        );
    }
    // The error names the rank.
    let (rank, _) = opened(folder.path(), names)[1].clone();
    assert!(rank.unwrap_err().starts_with("rank 0 on `"));
    let (rank, _) = opened(folder.path(), |_| Needs::Share)[0].clone();
    assert!(rank.unwrap_err().starts_with("rank 1 on `"));
}

/// Every byte of every shard is verified by some rank.
#[test]
fn what_is_shared_out_is_all_of_it() {
    for stage in 0..STAGES {
        let folder = tempfile::tempdir().unwrap();
        write_alone(folder.path(), 1);
        damage(&shard(folder.path(), 1, stage), 1);
        for (newest, intact) in opened(folder.path(), |_| Needs::Share) {
            let error = newest.unwrap_err();
            assert_eq!(intact, Err(error.clone()));
            assert!(
                error.contains(&format!("stage-{stage}.safetensors")),
                "{error}"
            );
            assert!(
                error.starts_with(&format!("rank {} on `", stage % 2)),
                "{error}"
            );
        }
    }
}

/// A damaged header in which the name is another one of the same length.
#[test]
fn a_name_that_a_damaged_header_hides_is_no_other_model() {
    let folder = tempfile::tempdir().unwrap();
    write_alone(folder.path(), 1);
    let path = shard(folder.path(), 1, 4);
    let mut bytes = fs::read(&path).unwrap();
    for place in 0..bytes.len() {
        if bytes[place..].starts_with(b"layer.4") {
            bytes[place + "layer.".len()] = b'9';
        }
    }
    fs::write(&path, bytes).unwrap();
    let of_four = |_| Needs::Names(BTreeSet::from(["layer.4.weight".to_owned()]));
    for needs in [names, of_four] {
        for (newest, _) in opened(folder.path(), needs) {
            let error = newest.unwrap_err();
            assert!(
                error.contains("stage-4.safetensors: the checksum is wrong"),
                "{error}"
            );
        }
    }
}

#[test]
fn without_a_checkpoint_all_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    ranks(2, move |world| {
        let error = Checkpoint::newest_in_world(&path, &world, Needs::Share).unwrap_err();
        assert!(matches!(error, CheckpointError::None { .. }), "{error}");
        world.leave().unwrap();
    });
}

/// Two folders of the same name, on hosts without a shared file system.
#[test]
fn ranks_that_read_two_folders_are_told_so() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write_alone(folders[0].path(), 1);
    let mut other = super::copied(1, |_| true);
    other.extras = Extras::new(1);
    let to = super::target(
        super::RealDisk,
        folders[1].path(),
        9,
        &super::Together::alone(),
    );
    super::super::write::write(&to, 1, Ok(other), None, || true).unwrap();
    let paths = folders.each_ref().map(|folder| folder.path().to_owned());
    let heard = ranks(2, move |world| {
        let path = &paths[world.rank()];
        let error = Checkpoint::newest_in_world(path, &world, Needs::Share).unwrap_err();
        world.leave().unwrap();
        assert!(error.is_wrong_use());
        error.to_string()
    });
    assert_eq!(heard[0], heard[1]);
    assert!(heard[0].contains("reads another manifest"), "{}", heard[0]);
}

const LAYERS: [&str; 3] = ["one", "two", "three"];

/// The given layers of a model, as a pipeline of one stage.
fn pipe(layers: &[&str], seed: i64) -> (Pipeline, Optimizer) {
    let model = layers.iter().fold(Sequential::new(), |model, layer| {
        model.layer(*layer, |p| nn::linear(p, 4, 4, LinearConfig::default()))
    });
    let pipe = Pipeline::builder(model)
        .micro_batches(2)
        .seed(seed as u64)
        .threads_per_stage(1)
        .build()
        .unwrap();
    (pipe, Optimizer::new(AdamW::default()))
}

fn train(pipe: &mut Pipeline, optimizer: &mut Optimizer) {
    let x = Tensor::ones([4, 4], (Kind::Float, tch::Device::Cpu));
    let y = Tensor::zeros([4, 4], (Kind::Float, tch::Device::Cpu));
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, tch::Reduction::Sum);
    pipe.train_step(&x, &y, loss).unwrap();
    optimizer.step(pipe).unwrap();
}

/// The state of a pipeline, by name.
type State = Vec<(String, Vec<f64>)>;

fn state(pipe: &mut Pipeline, optimizer: &Optimizer) -> State {
    let stages = pipe.snapshot(optimizer).unwrap();
    let all = stages.into_iter().flat_map(|(_, stage)| stage);
    let mut all: Vec<_> = all
        .map(|one| {
            let values = one.tensor.to_kind(Kind::Double).flatten(0, -1);
            let values = Vec::<f64>::try_from(values).unwrap();
            (format!("{:?} {}", one.role, one.name), values)
        })
        .collect();
    all.sort_by(|(left, _), (right, _)| left.cmp(right));
    all
}

/// Saves all layers in a single process, and returns their state.
fn saved(folder: &Path) -> State {
    let (mut pipe, mut optimizer) = pipe(&LAYERS, 1);
    train(&mut pipe, &mut optimizer);
    let mut checkpointer = Checkpointer::new(folder).unwrap();
    checkpointer
        .save(&mut pipe, &optimizer, Extras::new(1))
        .unwrap();
    checkpointer.finish().unwrap();
    state(&mut pipe, &optimizer)
}

/// Restores some of the layers in each rank, as a pipeline over processes does.
fn restored(folder: &Path, layers: [&'static [&'static str]; 2]) -> Vec<Result<State, String>> {
    let folder = folder.to_owned();
    ranks(2, move |world: World| {
        let (mut pipe, mut optimizer) = pipe(layers[world.rank()], 2);
        let before = state(&mut pipe, &optimizer);
        let needs = Needs::of(&mut pipe).unwrap();
        let found = Checkpoint::newest_in_world(&folder, &world, needs).unwrap();
        let restored = found.restore(&mut pipe, &mut optimizer);
        world.leave().unwrap();
        let after = state(&mut pipe, &optimizer);
        match restored {
            Ok(()) => Ok(after),
            Err(error) => {
                assert!(
                    matches!(
                        error.cause(),
                        CheckpointError::Fit { .. }
                            | CheckpointError::Told {
                                wrong_use: true,
                                ..
                            }
                    ),
                    "{error:?}"
                );
                assert_eq!(before, after, "nothing has been changed");
                Err(error.to_string())
            }
        }
    })
}

#[test]
fn each_rank_restores_its_own_layers() {
    let folder = tempfile::tempdir().unwrap();
    let expected = saved(folder.path());
    assert!(expected.iter().any(|(name, _)| name.contains("Optimizer")));
    for layers in [
        [&["one", "two"][..], &["three"]],
        [&["three"], &["one", "two"]],
    ] {
        let all = restored(folder.path(), layers);
        let mut all: Vec<_> = all.into_iter().flat_map(Result::unwrap).collect();
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        assert_eq!(all, expected);
    }
}

#[test]
fn another_model_is_told_to_all_before_anything_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path());
    let cases: [([&[&str]; 2], &str); 2] = [
        (
            [&["one"], &["two"]],
            "it has the parameter `three.bias`, which the model has not",
        ),
        (
            [&["one", "two"], &["three", "four"]],
            "it lacks the parameter `four.bias`, which the model has",
        ),
    ];
    for (layers, why) in cases {
        for error in restored(folder.path(), layers) {
            let error = error.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
