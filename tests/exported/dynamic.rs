//! Sizes other than the example's, and gradients missing from the file.

use gpipe::models::{ExportedModel, LossKind};
use gpipe::tch::Tensor;
use gpipe::{Pipeline, Values};

use crate::fixture::{ALL, Fixture, assert_near, path};
use crate::support::{assert_same_bits, cpus, gradients, single_threaded};

fn open(name: &str) -> ExportedModel {
    ExportedModel::open(path(name)).unwrap()
}

/// Regression test: synthetic data had the example's sizes, and other data was refused.
#[test]
fn a_dynamic_dimension_has_the_size_of_the_samples() {
    let file = open("lengths");
    assert_eq!(file.dynamic(), [("ids", 1, 5..=64)]);
    let spec = |file: &ExportedModel| file.spec(Some(LossKind::CrossEntropy.into())).unwrap();
    let shapes = |file: &ExportedModel| {
        let spec = spec(file);
        (
            spec.inputs()[0].shape().to_vec(),
            spec.targets()[0].shape().to_vec(),
        )
    };
    assert_eq!(shapes(&file), (vec![6], vec![6]));
    let longer = file.resized(&[&[24]]).unwrap();
    assert_eq!(shapes(&longer), (vec![24], vec![24]));
    // Mismatches are reported where samples are compared with shapes.
    assert_eq!(
        shapes(&longer.resized(&[&[24, 2]]).unwrap()),
        (vec![24], vec![24])
    );
    let error = file.resized(&[&[65]]).unwrap_err().to_string();
    assert!(
        error.contains("dimension 1 of the input `ids`") && error.contains("exported for 5 to 64"),
        "{error}"
    );
    assert_eq!(open("decoder").dynamic(), []);
    assert_eq!(
        shapes(&open("decoder").resized(&[&[24]]).unwrap()),
        (vec![6], vec![6])
    );

    // A computed size.
    let frames = |length: i64| {
        let file = open("frames").resized(&[&[3, length]]).unwrap();
        let spec = file.spec(Some(LossKind::Mse.into())).unwrap();
        spec.targets()[0].shape().to_vec()
    };
    assert_eq!(frames(16), [7, 4]);
    assert_eq!(frames(21), [10, 4]);
    assert_eq!(frames(22), [10, 4]);
}

/// Each token sees only those before it, so the outputs for a longer text begin with eager's for its
/// beginning.
#[test]
fn longer_sequences_begin_as_shorter_ones() {
    single_threaded();
    let fixture = Fixture::open("lengths");
    let (x, told) = (fixture.told("x0"), fixture.told("out"));
    let longer = Tensor::cat(&[x, &x.flip([1])], 1);
    let outputs = |stages: usize| {
        let mut pipe = fixture.builder(stages).build().unwrap();
        pipe.forward(&longer).unwrap()
    };
    let whole = outputs(1);
    assert_eq!(whole.size(), [x.size()[0], 12, 19]);
    assert_near(&whole.narrow(1, 0, 6), told, "the beginning");
    assert!(whole.equal(&outputs(3)));
}

#[test]
fn training_on_other_lengths_is_the_same_for_each_cut() {
    single_threaded();
    let file = open("lengths").resized(&[&[17]]).unwrap();
    let spec = file.spec(Some(LossKind::CrossEntropy.into())).unwrap();
    let (x, y) = spec.sample(6, 1).unwrap();
    let step = |stages: usize| {
        let pipe = Pipeline::builder(spec.build()).devices(&cpus(stages));
        let mut pipe = pipe.micro_batches(3).threads_per_stage(1).build().unwrap();
        let (x, y): (Values, Values) = (x.shallow_clone(), y.shallow_clone());
        let report = pipe.train_step(x, y, spec.loss()).unwrap();
        (report.read().unwrap().loss, gradients(&mut pipe))
    };
    let ((loss, own), (other, others)) = (step(1), step(3));
    assert_eq!(loss, other);
    assert_same_bits(&own, &others, "lengths");
    for (name, own) in own {
        assert!(own.abs().max().double_value(&[]) > 0.0, "{name}");
    }
}

/// torch.export records only the forward; the loss of custom gradients must be reported.
#[test]
fn gradients_of_its_own_that_a_model_has_are_told_as_far_as_the_file_shows_them() {
    let own = open("own_gradients");
    let [function, hook] = own.own_gradients() else {
        panic!("{:?}", own.own_gradients());
    };
    assert!(
        function.starts_with("the torch.autograd.Function `Straight` (make.py:"),
        "{function}"
    );
    assert_eq!(
        hook,
        "a backward hook of the module `head` (torch.nn.modules.linear.Linear)"
    );
    for name in ALL {
        assert!(open(name).own_gradients().is_empty(), "{name}");
    }
}
