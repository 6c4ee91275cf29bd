//! oneDNN's kernels in place of libtorch's choice: close to exact arithmetic, and the same under
//! every cut and schedule.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Kind, Tensor, nn};
use gpipe::{Kernels, Pipeline, PipelineBuilder, Recompute};

use crate::support::*;

/// Also of the smallest products.
const ONEDNN: Kernels = Kernels::OneDnn { from: 0 };

/// An operator of some operands.
type Apply = fn(&[Tensor]) -> Tensor;

/// Numbers that differ from each other, with about as many bits as a `f32` has.
fn operands(shapes: &[&[i64]]) -> Vec<Tensor> {
    let values = |(number, shape): (usize, &&[i64])| {
        let count = shape.iter().product::<i64>();
        let numbers = Tensor::arange(count, tch::kind::FLOAT_CPU) * 0.7 + number as f64;
        numbers.sin().reshape(*shape)
    };
    shapes.iter().enumerate().map(values).collect()
}

/// The result, and the gradients of the operands, in numbers of this kind.
fn numbers(operands: &[Tensor], kind: Kind, apply: Apply) -> Vec<Tensor> {
    let leaf = |tensor: &Tensor| tensor.to_kind(kind).detach().set_requires_grad(true);
    let leaves: Vec<Tensor> = operands.iter().map(leaf).collect();
    let result = apply(&leaves);
    let weights = (result.detach() * 3.0 + 1.0).cos();
    (&result * weights).sum(kind).backward();
    let gradients = leaves.iter().map(Tensor::grad);
    std::iter::once(result.detach()).chain(gradients).collect()
}

/// Images of a few rows, none as large as another; the last two operators are libtorch's.
fn operators() -> Vec<(&'static str, &'static [&'static [i64]], Apply)> {
    vec![
        ("mm", &[&[6, 17], &[17, 33]], |t| t[0].mm(&t[1])),
        ("mm of a transposed one", &[&[17, 6], &[17, 33]], |t| {
            t[0].tr().mm(&t[1])
        }),
        ("mm of slices", &[&[9, 20], &[20, 33]], |t| {
            t[0].narrow(1, 2, 11)
                .mm(&t[1].narrow(0, 3, 11).narrow(1, 1, 9))
        }),
        ("linear", &[&[40, 17], &[33, 17], &[33]], |t| {
            t[0].linear(&t[1], Some(&t[2]))
        }),
        ("linear of one row", &[&[1, 17], &[33, 17], &[33]], |t| {
            t[0].linear(&t[1], Some(&t[2]))
        }),
        (
            "linear of three dimensions",
            &[&[3, 5, 8], &[24, 8], &[24]],
            |t| t[0].linear(&t[1], Some(&t[2])),
        ),
        ("1 x 1", &[&[3, 8, 6, 5], &[12, 8, 1, 1]], |t| {
            t[0].conv2d(&t[1], None::<&Tensor>, 1, 0, 1, 1)
        }),
        (
            "3 x 3, one sample",
            &[&[1, 4, 9, 7], &[6, 4, 3, 3], &[6]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 1),
        ),
        (
            "3 x 3, stride 2",
            &[&[2, 16, 12, 12], &[32, 16, 3, 3], &[32]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 2, 1, 1, 1),
        ),
        (
            "5 x 3, unlike in both directions",
            &[&[4, 3, 17, 16], &[6, 3, 5, 3]],
            |t| {
                t[0].conv2d(
                    &t[1],
                    None::<&Tensor>,
                    [3_i64, 2],
                    [1_i64, 2],
                    [2_i64, 1],
                    1,
                )
            },
        ),
        ("rows of 4", &[&[3, 5, 4, 4], &[7, 5, 3, 3]], |t| {
            t[0].conv2d(&t[1], None::<&Tensor>, 1, 1, 1, 1)
        }),
        (
            "channels last",
            &[&[2, 6, 8, 8], &[5, 6, 3, 3], &[5]],
            |t| {
                let input = t[0]
                    .permute([0, 2, 3, 1])
                    .contiguous()
                    .permute([0, 3, 1, 2]);
                input.conv2d(&t[1], Some(&t[2]), 1, 1, 1, 1)
            },
        ),
        ("groups", &[&[2, 6, 8, 8], &[6, 3, 3, 3], &[6]], |t| {
            t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 2)
        }),
        ("transposed", &[&[2, 6, 8, 8], &[6, 3, 3, 3], &[3]], |t| {
            t[0].conv_transpose2d(&t[1], Some(&t[2]), 1, 1, 0, 1, 1)
        }),
    ]
}

#[test]
fn results_and_gradients_are_close_to_those_of_double_precision() {
    single_threaded();
    for (name, shapes, apply) in operators() {
        let operands = operands(shapes);
        let exact = numbers(&operands, Kind::Double, apply);
        let _scope = ONEDNN.scope().unwrap();
        let own = numbers(&operands, Kind::Float, apply);
        for (place, (own, exact)) in own.iter().zip(&exact).enumerate() {
            assert_eq!(own.size(), exact.size(), "{name}, {place}");
            let off = (own.to_kind(Kind::Double) - exact).abs().max();
            let most = exact.abs().max();
            let off = off.double_value(&[]) / most.double_value(&[]);
            assert!(off < 1e-5, "{name}, {place}: {off:e} off");
        }
    }
}

/// What is wrong with operands is libtorch's to say, as without oneDNN.
#[test]
fn errors_are_those_of_libtorch() {
    let wrong: [(&[i64], &[i64]); 3] = [
        (&[2, 3, 8, 8], &[4, 5, 3, 3]),
        (&[2, 3, 2, 2], &[4, 3, 5, 5]),
        (&[3, 4], &[5, 6]),
    ];
    for (left, right) in wrong {
        let say = || {
            let (left, right) = (
                Tensor::zeros(left, tch::kind::FLOAT_CPU),
                Tensor::zeros(right, tch::kind::FLOAT_CPU),
            );
            let told = if left.dim() == 2 {
                left.f_mm(&right)
            } else {
                left.f_conv2d(
                    &right,
                    None::<&Tensor>,
                    [1_i64, 1],
                    [0_i64, 0],
                    [1_i64, 1],
                    1,
                )
            };
            told.unwrap_err()
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let plain = say();
        let _scope = ONEDNN.scope().unwrap();
        assert_eq!(say(), plain);
    }
}

fn head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, 256, 7, nn::LinearConfig::default()))
}

fn hidden(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, 256, 256, nn::LinearConfig::default()))
}

fn trained(
    kernels: Kernels,
    settings: impl Fn(PipelineBuilder) -> PipelineBuilder,
) -> Vec<(String, Tensor)> {
    let chain: Chain = vec![("a", hidden), ("b", hidden), ("c", hidden), ("head", head)];
    let builder = Pipeline::builder(sequential(&chain))
        .micro_batches(4)
        .threads_per_stage(1)
        .seed(3)
        .kernels(kernels);
    let mut pipe = settings(builder).build().unwrap();
    let x = operands(&[&[128, 256]]).remove(0);
    let y = Tensor::arange(128, tch::kind::INT64_CPU).remainder(7);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    gradients(&mut pipe)
}

/// As the command has it: products from 2^18 multiplications on.
#[test]
fn bits_do_not_depend_on_cut_schedule_or_recomputation() {
    let one = trained(Kernels::ONEDNN, |builder| builder);
    for schedule in [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
        ScheduleKind::Zbv,
    ] {
        for recompute in [Recompute::Never, Recompute::Always] {
            let two = trained(Kernels::ONEDNN, |builder| {
                builder
                    .devices(&cpus(2))
                    .schedule(schedule)
                    .recompute(recompute.clone())
            });
            assert_same_bits(&two, &one, &format!("{schedule}, recompute {recompute}"));
        }
    }
}

/// A pipeline's kernels are those of its own threads.
#[test]
fn the_callers_thread_stays_as_it_is() {
    let before = trained(Kernels::Libtorch, |builder| builder);
    let _scope = Kernels::ONEDNN.scope().unwrap();
    let beside = trained(Kernels::Libtorch, |builder| builder);
    assert_same_bits(&beside, &before, "libtorch's kernels beside oneDNN's");
}
