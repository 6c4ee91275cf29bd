//! oneDNN's kernels in place of libtorch's choice: close to exact arithmetic, and the same under every cut
//! and schedule.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use gpipe::{
    Pipeline, PipelineBuilder,
    settings::{Kernels, Recompute},
};

use crate::support::*;

/// Used even for the smallest products.
const ONEDNN: Kernels = Kernels::OneDnn { from: 0 };

/// An operator on some operands.
type Apply = fn(&[Tensor]) -> Tensor;

/// Irregular numbers between -1 and 1 that use all bits of an `f32`.
fn values(number: usize, shape: &[i64]) -> Tensor {
    let places = Tensor::arange(shape.iter().product::<i64>(), tch::kind::DOUBLE_CPU);
    let values = ((places * 12.9898 + number as f64).sin() * 43758.5453).frac();
    values.to_kind(Kind::Float).reshape(shape)
}

fn operands(shapes: &[&[i64]]) -> Vec<Tensor> {
    let numbered = shapes.iter().enumerate();
    numbered
        .map(|(number, shape)| values(number, shape))
        .collect()
}

/// The result, and the operands' gradients of the weighted sum of the results.
fn numbers(operands: &[Tensor], weights: &Tensor, apply: Apply) -> Vec<Tensor> {
    let leaf = |tensor: &Tensor| tensor.detach().set_requires_grad(true);
    let leaves: Vec<Tensor> = operands.iter().map(leaf).collect();
    let result = apply(&leaves);
    (&result * weights).sum(result.kind()).backward();
    let gradients = leaves.iter().map(Tensor::grad);
    std::iter::once(result.detach()).chain(gradients).collect()
}

/// Images of a few rows, all of different sizes; the last two operators are libtorch's.
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
        (
            "a weight larger than the images",
            &[&[2, 3, 5, 4], &[64, 3, 3, 3], &[64]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 1),
        ),
        (
            "the same, unlike in both directions",
            &[&[2, 3, 9, 8], &[48, 3, 5, 3]],
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
        (
            "1 x 1, stride 2, border",
            &[&[3, 8, 7, 6], &[12, 8, 1, 1]],
            |t| t[0].conv2d(&t[1], None::<&Tensor>, 2, 1, 1, 1),
        ),
        ("few rows, large", &[&[16, 512], &[520, 512], &[520]], |t| {
            t[0].linear(&t[1], Some(&t[2]))
        }),
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

/// Each number is a sum of products, as are the gradients. Its rounding error grows like the root of the
/// number of terms, in units in the last place of the sum of absolute values.
#[test]
fn results_and_gradients_are_close_to_those_of_double_precision() {
    single_threaded();
    for (name, shapes, apply) in operators() {
        let mut single = operands(shapes);
        let shape = tch::no_grad(|| apply(&single)).size();
        single.push(values(single.len(), &shape));
        let in_double = |change: fn(&Tensor) -> Tensor| {
            let mut operands: Vec<Tensor> = single.iter().map(change).collect();
            let weights = operands.pop().unwrap();
            numbers(&operands, &weights, apply)
        };
        let exact = in_double(|tensor| tensor.to_kind(Kind::Double));
        let sizes = in_double(|tensor| tensor.to_kind(Kind::Double).abs());
        let terms = in_double(|tensor| tensor.to_kind(Kind::Double).ones_like());
        let weights = single.pop().unwrap();
        let _scope = ONEDNN.scope().unwrap();
        let own = numbers(&single, &weights, apply);
        for (place, own) in own.iter().enumerate() {
            let [exact, size, terms] = [&exact[place], &sizes[place], &terms[place]];
            assert_eq!(own.size(), exact.size(), "{name}, {place}");
            let most = (terms.sqrt() + 1.0) * size * f64::from(f32::EPSILON);
            let off = (own.to_kind(Kind::Double) - exact).abs();
            let part = (&off / most.clamp_min(f64::MIN_POSITIVE)).max();
            let part = part.double_value(&[]);
            assert!(part <= 1.0, "{name}, {place}: {part} times what is allowed");
        }
    }
}

fn sorted(variables: &nn::VarStore) -> Vec<(String, Tensor)> {
    let all = variables.variables().into_iter();
    let mut trained: Vec<_> = all.filter(|(_, tensor)| tensor.requires_grad()).collect();
    trained.sort_by(|one, other| one.0.cmp(&other.0));
    trained
}

/// Twelve blocks of two convolutions with batch norms each.
#[derive(Debug)]
struct Deep {
    first: nn::Conv2D,
    blocks: Vec<[(nn::Conv2D, nn::BatchNorm); 2]>,
    last: nn::Linear,
}

impl Deep {
    fn new(path: &nn::Path<'_>) -> Self {
        let convolution = |path: nn::Path<'_>, from, to, kernel: i64| {
            let config = nn::ConvConfig {
                padding: kernel / 2,
                bias: false,
                ..nn::ConvConfig::default()
            };
            nn::conv2d(path, from, to, kernel, config)
        };
        let block = |number: i64| {
            let path = path / number;
            let norm = |path, width| nn::batch_norm2d(path, width, nn::BatchNormConfig::default());
            [
                (convolution(&path / "a", 32, 8, 1), norm(&path / "b", 8)),
                (convolution(&path / "c", 8, 32, 3), norm(&path / "d", 32)),
            ]
        };
        Self {
            first: convolution(path / "first", 3, 32, 3),
            blocks: (0..12).map(block).collect(),
            last: nn::linear(path / "last", 32, 10, nn::LinearConfig::default()),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let block = |x: Tensor, block: &[(nn::Conv2D, nn::BatchNorm); 2]| {
            let inner = block
                .iter()
                .fold(x.shallow_clone(), |y, (convolution, norm)| {
                    y.apply(convolution).apply_t(norm, true).relu()
                });
            x + inner
        };
        let x = self.blocks.iter().fold(x.apply(&self.first), block);
        x.mean_dim([2_i64, 3].as_slice(), false, x.kind())
            .apply(&self.last)
    }

    /// Gradients of all parameters, in the order of their names, computed in this type from the same values.
    fn gradients(kind: Kind, x: &Tensor) -> Vec<(String, Tensor)> {
        let mut variables = nn::VarStore::new(Device::Cpu);
        let net = Self::new(&variables.root());
        for (number, (_, mut tensor)) in sorted(&variables).into_iter().enumerate() {
            let shape = tensor.size();
            if let [_, inner @ ..] = &shape[..]
                && !inner.is_empty()
            {
                let bound = (6.0 / inner.iter().product::<i64>() as f64).sqrt();
                tch::no_grad(|| tensor.copy_(&(values(number, &shape) * bound)));
            }
        }
        variables.set_kind(kind);
        let y = Tensor::arange(x.size()[0], tch::kind::INT64_CPU);
        net.forward(&x.to_kind(kind))
            .cross_entropy_for_logits(&y)
            .backward();
        let gradient =
            |(name, tensor): (String, Tensor)| (name, tensor.grad().to_kind(Kind::Double));
        sorted(&variables).into_iter().map(gradient).collect()
    }
}

/// A deep net amplifies its layers' rounding errors: its gradients may be far from libtorch's, but must be as
/// close to the exact ones.
#[test]
fn gradients_of_a_deep_net_are_as_exact_as_libtorchs() {
    single_threaded();
    let x = values(0, &[4, 3, 8, 8]);
    let plain = Deep::gradients(Kind::Float, &x);
    let scope = ONEDNN.scope().unwrap();
    let own = Deep::gradients(Kind::Float, &x);
    drop(scope);
    let exact = Deep::gradients(Kind::Double, &x);
    // Error of all gradients together, relative to the exact ones' norm.
    let off = |some: &[(String, Tensor)]| {
        let squares = |(one, other): (&(String, Tensor), &(String, Tensor))| {
            assert_eq!(one.0, other.0);
            (&one.1 - &other.1)
                .square()
                .sum(Kind::Double)
                .double_value(&[])
        };
        let all: f64 = some.iter().zip(&exact).map(squares).sum();
        let norm =
            |(_, tensor): &(String, Tensor)| tensor.square().sum(Kind::Double).double_value(&[]);
        (all / exact.iter().map(norm).sum::<f64>()).sqrt()
    };
    let (own, plain) = (off(&own), off(&plain));
    assert!(own < 3.0 * plain, "{own:e} off, libtorch {plain:e}");
}

/// libtorch reports invalid operands, as without oneDNN.
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
    let x = values(0, &[128, 256]);
    let y = Tensor::arange(128, tch::kind::INT64_CPU).remainder(7);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    gradients(&mut pipe)
}

/// The command's setting: products from 2^18 multiplications on.
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

/// A pipeline's kernels apply to its own threads only.
#[test]
fn the_callers_thread_stays_as_it_is() {
    let before = trained(Kernels::Libtorch, |builder| builder);
    let _scope = Kernels::ONEDNN.scope().unwrap();
    let beside = trained(Kernels::Libtorch, |builder| builder);
    assert_same_bits(&beside, &before, "libtorch's kernels beside oneDNN's");
}
