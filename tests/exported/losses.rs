//! Losses by name.

use gpipe::models::{ExportedModel, LossKind, NamedLoss};
use gpipe::tch::{Kind, Reduction, Tensor};
use gpipe::{Loss, Pipeline, Sequential, Values, settings::LossFn};

use crate::fixture::path;
use crate::support::{cpus, single_threaded};

const IGNORED: i64 = -100;

fn numbers(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    (Tensor::arange(count, (Kind::Float, gpipe::tch::Device::Cpu)) * 0.7)
        .sin()
        .view(shape)
}

fn value(loss: impl Into<NamedLoss>, output: &Tensor, target: &Tensor) -> Result<f64, String> {
    let loss = loss.into();
    let loss = loss.loss(&Values::from(output), &Values::from(target));
    let loss: Loss = loss.map_err(|error| format!("{error:#}"))?;
    Ok(loss.value.double_value(&[]))
}

#[test]
fn they_are_those_of_pytorch() {
    let close = |own: f64, told: &Tensor| {
        let told = told.double_value(&[]);
        assert!((own - told).abs() < 1e-6, "{own}, {told}");
    };
    let cross = LossKind::CrossEntropy;
    let labels = Tensor::from_slice(&[2_i64, 0, 1, 1]);
    let logits = numbers(&[4, 3]);
    close(
        value(cross, &logits, &labels).unwrap(),
        &logits.cross_entropy_for_logits(&labels),
    );
    // Labels may be of other integer types.
    let small = labels.to_kind(Kind::Uint8);
    assert_eq!(
        value(cross, &logits, &small),
        value(cross, &logits, &labels)
    );
    // Classes are the last dimension for tokens, the second for images.
    let tokens = numbers(&[2, 2, 3]);
    let told = tokens.view([4, 3]).cross_entropy_for_logits(&labels);
    close(value(cross, &tokens, &labels.view([2, 2])).unwrap(), &told);
    let image = numbers(&[1, 3, 2, 2]);
    let told = image
        .permute([0, 2, 3, 1])
        .reshape([4, 3])
        .cross_entropy_for_logits(&labels);
    close(
        value(cross, &image, &labels.view([1, 2, 2])).unwrap(),
        &told,
    );

    let (y, x) = (numbers(&[4, 1]).abs(), numbers(&[4, 1]));
    close(
        value(LossKind::Mse, &x, &y).unwrap(),
        &x.mse_loss(&y, Reduction::Mean),
    );
    let none = None::<Tensor>;
    let told =
        x.binary_cross_entropy_with_logits(&y, none.as_ref(), none.as_ref(), Reduction::Mean);
    close(value(LossKind::Bce, &x, &y).unwrap(), &told);
    // A table's column has no dimension of size one.
    assert_eq!(
        value(LossKind::Mse, &x, &y.view([4])),
        value(LossKind::Mse, &x, &y)
    );
}

#[test]
fn targets_that_do_not_fit_are_told_with_both_shapes() {
    let refused = |kind: LossKind, output: &[i64], target: Tensor, wanted: &[&str]| {
        let error = value(kind, &numbers(output), &target).unwrap_err();
        for wanted in wanted {
            assert!(error.contains(wanted), "{error}");
        }
    };
    let cross = LossKind::CrossEntropy;
    let shapes = ["[4, 3]", "[5]", "without its dimension of classes"];
    let labels = |count| Tensor::zeros([count], (Kind::Int64, gpipe::tch::Device::Cpu));
    refused(cross, &[4, 3], labels(5), &shapes);
    refused(
        cross,
        &[4, 3],
        numbers(&[4]),
        &["numbers of classes, not Float"],
    );
    // PyTorch would broadcast these with a warning.
    refused(
        LossKind::Mse,
        &[4, 3],
        numbers(&[4]),
        &["`mse`", "[4, 3]", "[4]"],
    );
    refused(
        LossKind::Bce,
        &[4, 1],
        numbers(&[1, 4]),
        &["`bce`", "[4, 1]", "[1, 4]"],
    );
    // Without an ignored number each target is a class.
    refused(
        cross,
        &[2, 3],
        labels(2) + IGNORED,
        &["label -100 is out of the range 0 to 2", "begin at 1"],
    );
}

/// The first micro-batch has one counted target, the second only counted ones: averaging their means would
/// weigh the one as much as all others together.
#[test]
fn an_ignored_number_counts_nothing_however_many_micro_batches_there_are() {
    single_threaded();
    let step = |micro: usize| {
        let model = Sequential::new().layer("head", |p| {
            gpipe::tch::nn::linear(p, 5, 3, gpipe::tch::nn::LinearConfig::default())
        });
        let mut pipe = Pipeline::builder(model)
            .devices(&cpus(1))
            .micro_batches(micro)
            .seed(1)
            .build()
            .unwrap();
        let targets = Tensor::from_slice(&[1_i64, IGNORED, IGNORED, 0, 2, 1]);
        let loss = NamedLoss::from(LossKind::CrossEntropy).ignore_index(IGNORED);
        let report = pipe.train_step(&numbers(&[6, 5]), &targets, loss).unwrap();
        let loss = report.read().unwrap().loss;
        let parameters = pipe.parameters().unwrap();
        let weight = parameters.iter().find(|(name, _)| name == "head.weight");
        (loss, weight.unwrap().1.grad())
    };
    let (whole, gradient) = step(1);
    for micro in [2, 3, 6] {
        let (loss, own) = step(micro);
        assert!((loss - whole).abs() < 1e-6, "{micro}: {loss}, {whole}");
        let apart = (own - &gradient).abs().max().double_value(&[]);
        assert!(apart < 1e-6, "{micro}: {apart}");
    }
}

#[test]
fn a_loss_that_the_outputs_do_not_fit_is_refused_before_training() {
    let refused = |name: &str, loss: LossKind, wanted: &str| {
        let file = ExportedModel::open(path(name)).unwrap();
        let error = file.spec(Some(loss.into())).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    };
    refused(
        "mlp",
        LossKind::Output,
        "none of the model's outputs is a single number",
    );
    refused("judged", LossKind::Mse, "use the loss `output`");
}

/// Synthetic data has the file's shapes, and integers within the range of its tables.
#[test]
fn data_is_made_up_from_the_file() {
    let cross = Some(LossKind::CrossEntropy.into());
    let file = ExportedModel::open(path("encoder")).unwrap();
    let spec = file.spec(cross).unwrap();
    let (inputs, targets) = spec.sample(4, 0).unwrap();
    let of = |number: usize| inputs.get(number).unwrap();
    assert_eq!((of(0).size(), of(0).kind()), (vec![4, 6], Kind::Int64));
    assert!(of(0).max().int64_value(&[]) < 19);
    assert_eq!((of(1).size(), of(1).kind()), (vec![4, 6], Kind::Float));
    let y = targets.one().unwrap();
    assert_eq!((y.size(), y.kind()), (vec![4], Kind::Int64));
    assert_eq!(file.micro_batch_sizes(), 1..=4096);
    let tokens = ExportedModel::open(path("decoder"))
        .unwrap()
        .spec(cross)
        .unwrap();
    assert_eq!(tokens.targets(), tokens.inputs());
    let fixed = ExportedModel::open(path("fixed")).unwrap();
    assert_eq!(fixed.micro_batch_size(), Some(2));
    // Any content changes a file's fingerprint.
    assert_ne!(file.fingerprint(), fixed.fingerprint());
}
