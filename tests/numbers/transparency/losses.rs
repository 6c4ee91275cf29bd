//! How the losses of micro-batches become the mini-batch's loss: means, sums, and weighted means.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::{
    Error, Loss, Pipeline, Sequential,
    error::{BatchError, NonFinite},
    settings::{LossScale, Precision, Recompute},
};

use crate::support::*;

const SCHEDULES: [ScheduleKind; 6] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::Interleaved1F1B,
    ScheduleKind::ZbH1,
    ScheduleKind::Zbv,
    ScheduleKind::DualPipeV,
];
/// The class of ignored targets.
const IGNORED: i64 = -100;

fn each(out: &Tensor, y: &Tensor) -> Tensor {
    out.cross_entropy_loss(y, None::<Tensor>, Reduction::None, IGNORED, 0.0)
}

/// A naive mean over counted targets. Without any it is 0 / 0, and so is every gradient, including those of
/// masked samples, as NaN times 0 is NaN.
fn mean_of_valid(out: &Tensor, y: &Tensor) -> Loss {
    let mask = y.not_equal(IGNORED).to_kind(out.kind());
    let valid = mask.sum(None);
    let mean = (each(out, y) * mask).sum(None) / &valid;
    Loss::weighted(mean, valid.double_value(&[]))
}

fn pipeline(micro: usize, schedule: ScheduleKind, recompute: Recompute) -> Pipeline {
    Pipeline::builder(sequential(&mlp()))
        .devices(&cpus(2))
        .micro_batches(micro)
        .schedule(schedule)
        .recompute(recompute)
        .threads_per_stage(1)
        .seed(11)
        .build()
        .unwrap()
}

fn asking(x: &Tensor) -> Tensor {
    x.copy().set_requires_grad(true)
}

fn rows(from: &Tensor, start: i64, count: i64) -> Tensor {
    from.narrow(0, start, count).copy()
}

fn copies(list: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let copy = |(name, grad): (String, Tensor)| (name, grad.copy());
    list.into_iter().map(copy).collect()
}

/// Regression test: the loss was 0 times NaN, so `NonFinite::Skip` dropped a good step; if the loss
/// function's backward gave NaN, too, so was every gradient.
#[test]
fn a_micro_batch_of_weight_zero_counts_nothing() {
    single_threaded();
    let (x, y) = mlp_batch(12);
    // The second of three micro-batches.
    let _ = y.narrow(0, 4, 4).fill_(IGNORED);
    let others = |all: &Tensor| Tensor::cat(&[rows(all, 0, 4), rows(all, 8, 4)], 0);
    for schedule in SCHEDULES {
        for recompute in [Recompute::Never, Recompute::Always] {
            let case = format!("{schedule:?}, {recompute:?}");
            let mut without = pipeline(2, schedule, recompute.clone());
            let input = asking(&others(&x));
            let wanted = without.train_step(&input, others(&y), mean_of_valid);
            let wanted = wanted.unwrap();
            let wanted_input = wanted.input_gradient.as_ref().unwrap().one().unwrap();

            let mut pipe = pipeline(3, schedule, recompute);
            let report = pipe.train_step(asking(&x), &y, mean_of_valid).unwrap();
            assert_eq!(
                report.read().unwrap().loss.to_bits(),
                wanted.read().unwrap().loss.to_bits(),
                "{case}"
            );
            assert_same_bits(&gradients(&mut pipe), &gradients(&mut without), &case);
            let input = report.input_gradient.as_ref().unwrap().one().unwrap();
            assert!(others(input).equal(wanted_input), "{case}");
            let own = input.narrow(0, 4, 4);
            assert!(own.equal(&own.zeros_like()), "{case}: {own:?}");
        }
    }
}

#[test]
fn what_counts_nothing_is_not_looked_at_either() {
    single_threaded();
    let (x, y) = mlp_batch(12);
    let _ = y.narrow(0, 0, 4).fill_(IGNORED);
    let settings = [
        (NonFinite::Skip, Precision::F32),
        (NonFinite::Fail, Precision::F32),
        (NonFinite::Skip, Precision::Bf16),
        (NonFinite::Allow, Precision::Fp16),
    ];
    for (non_finite, precision) in settings {
        let case = format!("{non_finite:?}, {precision:?}");
        let mut pipe = Pipeline::builder(sequential(&mlp()))
            .devices(&cpus(2))
            .micro_batches(3)
            .precision(precision)
            .on_non_finite(non_finite)
            .loss_scale(LossScale {
                initial: 1024.0,
                ..LossScale::default()
            })
            .build()
            .unwrap();
        let scale = pipe.loss_scale();
        let report = pipe.train_step(&x, &y, mean_of_valid).unwrap();
        assert_eq!(report.read().unwrap().non_finite, None, "{case}");
        assert!(
            report.read().unwrap().loss.is_finite(),
            "{case}: {}",
            report.read().unwrap().loss
        );
        assert_eq!(pipe.loss_scale(), scale, "{case}");
        let norm = pipe.clip_grad_norm(f64::INFINITY).unwrap();
        assert!(norm.is_finite() && norm > 0.0, "{case}: {norm}");
        // A constant is enough for a loss of weight 0: it needs no backward.
        let constant = |out: &Tensor, y: &Tensor| match mean_of_valid(out, y) {
            loss if loss.value.isfinite().int64_value(&[]) == 1 => loss,
            _ => Loss::weighted(Tensor::from(0.0_f32), 0.0),
        };
        let again = pipe.train_step(&x, &y, constant).unwrap();
        assert_eq!(
            again.read().unwrap().loss.to_bits(),
            report.read().unwrap().loss.to_bits(),
            "{case}"
        );
    }
}

#[test]
fn a_batch_of_which_nothing_counts_is_an_error_that_changes_nothing() {
    single_threaded();
    let (x, y) = mlp_batch(12);
    let nothing = y.full_like(IGNORED);
    for micro in [1, 3] {
        let mut pipe = pipeline(micro, ScheduleKind::OneFOneB, Recompute::Never);
        pipe.train_step(&x, &y, mean_of_valid).unwrap();
        let before = copies(gradients(&mut pipe));
        let error = pipe.train_step(&x, &nothing, mean_of_valid).unwrap_err();
        assert!(
            matches!(error, Error::Batch(BatchError::NoWeight)),
            "{error}"
        );
        assert!(
            error.to_string().contains("leave such batches out"),
            "{error}"
        );
        assert_same_bits(&gradients(&mut pipe), &before, "as before the step");
        pipe.train_step(&x, &y, mean_of_valid).unwrap();
    }
}

/// Regression test: a `Loss`'s weight was not checked, so NaN silently corrupted all gradients.
#[test]
fn a_weight_that_is_no_count_is_refused_wherever_it_is_given() {
    single_threaded();
    let (x, y) = mlp_batch(6);
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        let mut pipe = pipeline(3, ScheduleKind::OneFOneB, Recompute::Never);
        // The second micro-batch has another weight than the first.
        let second = |y: &Tensor| y.int64_value(&[0]) == (2 * 3) % 5;
        let given = move |y: &Tensor| if second(y) { weight } else { 1.0 };
        let pair = move |out: &Tensor, y: &Tensor| (cross_entropy(out, y), given(y));
        let loss = move |out: &Tensor, y: &Tensor| Loss::weighted(cross_entropy(out, y), given(y));
        let told = [
            pipe.train_step(&x, &y, pair).unwrap_err(),
            pipe.train_step(&x, &y, loss).unwrap_err(),
        ];
        for error in told {
            let micro = error.stage_error().unwrap().micro.unwrap();
            assert_eq!(micro.index(), 1, "{error}");
            let text = format!("returned the weight {weight}, which is not a count");
            assert!(error.to_string().contains(&text), "{error}");
        }
        assert!(gradients(&mut pipe).is_empty());
    }
}

type LossOf = fn(&Tensor, &Tensor) -> Loss;

fn sum_of_all(out: &Tensor, y: &Tensor) -> Loss {
    Loss::sum(each(out, y).sum(None))
}

/// Regression test: a sum was combined like a mean: 28.17 became 9.81.
#[test]
fn a_summed_loss_is_that_of_a_plain_loop_to_the_bit() {
    single_threaded();
    let chain = mlp();
    for samples in [12, 7, 2] {
        let (x, y) = mlp_batch(samples);
        for micro in [1, 2, 3, 4, 7] {
            for schedule in SCHEDULES {
                let case = format!("{samples} samples, m = {micro}, {schedule:?}");
                let mut pipe = pipeline(micro, schedule, Recompute::Never);
                let plain = Plain::like(&chain, &mut pipe);
                let (mut loss, mut start) = (0.0, 0);
                for size in super::sizes(samples, micro) {
                    let (x, y) = (rows(&x, start, size), rows(&y, start, size));
                    let own = each(&plain.forward(&x), &y).sum(None);
                    own.backward();
                    loss += own.double_value(&[]);
                    start += size;
                }
                let report = pipe.train_step(&x, &y, sum_of_all).unwrap();
                assert_eq!(
                    report.read().unwrap().loss.to_bits(),
                    loss.to_bits(),
                    "{case}"
                );
                assert_same_bits(&gradients(&mut pipe), &plain.gradients(), &case);
            }
        }
    }
}

#[test]
fn a_summed_loss_is_that_of_the_whole_mini_batch() {
    single_threaded();
    let double = |path: &nn::Path<'_>| {
        let weight = path.randn("weight", &[5, 4], 0.0, 0.5);
        nn::func(move |x| {
            x.matmul(&weight.to_kind(Kind::Double).transpose(0, 1))
                .tanh()
        })
    };
    let model = Sequential::new()
        .layer("one", double)
        .layer("two", |_| nn::func(|x| x.exp()));
    let x = batch(&[10, 4], 10).0.to_kind(Kind::Double);
    let y = batch(&[10, 5], 10).0.to_kind(Kind::Double);
    let loss = |out: &Tensor, y: &Tensor| Loss::sum(out.mse_loss(y, Reduction::Sum));
    for micro in [1, 3, 4, 10] {
        let mut pipe = Pipeline::new(model.clone(), &cpus(2), micro).unwrap();
        let report = pipe.train_step(asking(&x), &y, loss).unwrap();
        let (_, weight) = pipe.parameters().unwrap().remove(0);
        let (x, weight) = (asking(&x), asking(&weight.detach().to_kind(Kind::Double)));
        let whole = x.matmul(&weight.transpose(0, 1)).tanh().exp();
        let whole = whole.mse_loss(&y, Reduction::Sum);
        whole.backward();
        let wanted = whole.double_value(&[]);
        assert!(
            (report.read().unwrap().loss - wanted).abs() <= 1e-12 * wanted,
            "m = {micro}"
        );
        let input = report.input_gradient.as_ref().unwrap().one().unwrap();
        assert!(
            input.allclose(&x.grad(), 1e-12, 1e-12, false),
            "m = {micro}"
        );
        let (_, own) = gradients(&mut pipe).remove(0);
        let own = own.to_kind(Kind::Double);
        assert!(
            own.allclose(&weight.grad(), 1e-6, 1e-6, false),
            "m = {micro}"
        );
    }
}

#[test]
fn a_step_has_losses_of_one_kind() {
    single_threaded();
    let (x, y) = mlp_batch(6);
    let mean = |out: &Tensor, y: &Tensor| Loss::mean(cross_entropy(out, y));
    let sum = |out: &Tensor, y: &Tensor| Loss::sum(cross_entropy(out, y));
    let weighted = |out: &Tensor, y: &Tensor| Loss::weighted(cross_entropy(out, y), 2.0);
    let cases: [(LossOf, LossOf, &str, &str); 3] = [
        (mean, sum, "mean", "sum"),
        (sum, weighted, "sum", "weighted mean"),
        (weighted, mean, "weighted mean", "mean"),
    ];
    for (first, second, one, other) in cases {
        let mut pipe = pipeline(3, ScheduleKind::OneFOneB, Recompute::Never);
        let is_second = |y: &Tensor| y.int64_value(&[0]) == (2 * 3) % 5;
        let mixed = move |out: &Tensor, y: &Tensor| {
            let loss = if is_second(y) { second } else { first };
            loss(out, y)
        };
        let error = pipe.train_step(&x, &y, mixed).unwrap_err();
        let text = format!("a {one} for micro-batch 0 and a {other} for micro-batch 1");
        assert!(error.to_string().contains(&text), "{error}");
        assert!(error.is_wrong_use());
        assert!(gradients(&mut pipe).is_empty(), "the step is undone");
        pipe.train_step(&x, &y, first).unwrap();
    }
}

/// Regression test: one part without a gradient dropped the gradient of the whole input.
#[test]
fn an_input_that_some_micro_batches_do_not_use_has_a_gradient_of_zero_there() {
    single_threaded();
    let model = Sequential::new().layer("scale", |p| {
        let scale = p.ones("scale", &[1]);
        // Samples with a negative first number are not used.
        nn::func(move |x| {
            let used = x.double_value(&[0, 0]) >= 0.0;
            let x = if used { x.shallow_clone() } else { x.detach() };
            x * &scale
        })
    });
    let x = Tensor::from_slice(&[1.0_f32, -1.0, 2.0]).view([3, 1]);
    let y = Tensor::zeros([3, 1], (Kind::Float, Device::Cpu));
    let mut pipe = Pipeline::new(model, &cpus(1), 3).unwrap();
    let loss = |out: &Tensor, _: &Tensor| Loss::sum(out.sum(None));
    let report = pipe.train_step(asking(&x), &y, loss).unwrap();
    let input = report.input_gradient.as_ref().unwrap().one().unwrap();
    assert_eq!(
        Vec::<f32>::try_from(input.view([3])).unwrap(),
        [1.0, 0.0, 1.0]
    );
}
