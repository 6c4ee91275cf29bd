//! The product that computes a weight's gradient may accumulate into the sum of earlier micro-batches; the
//! bits are those of a product and a sum, for any shape and kernels.

use crate::support::*;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, settings::Kernels};

const MICRO_BATCHES: usize = 3;
const WIDTH: i64 = 128;

fn biased(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, 12, WIDTH, nn::LinearConfig::default()))
}

fn unbiased(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    let config = nn::LinearConfig {
        bias: false,
        ..Default::default()
    };
    Box::new(nn::linear(path, WIDTH, WIDTH, config))
}

/// A weight used as stored, and one used twice.
fn stored_and_shared(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    let init = nn::init::DEFAULT_KAIMING_UNIFORM;
    let stored = path.var("stored", &[WIDTH, WIDTH], init);
    let shared = path.var("shared", &[WIDTH, WIDTH], init);
    Box::new(nn::func(move |x| {
        let once = x.mm(&stored).relu().mm(&shared.tr());
        once.tanh().mm(&shared.tr())
    }))
}

fn head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, WIDTH, 5, nn::LinearConfig::default()))
}

/// The libraries keep a product of up to 192, 256 or 384 rows in registers; more rows they sum in parts.
#[test]
fn products_that_add_have_the_bits_of_a_product_and_a_sum() {
    single_threaded();
    let chain: Chain = vec![
        ("biased", biased),
        ("unbiased", unbiased),
        ("others", stored_and_shared),
        ("head", head),
    ];
    for rows in [1, 7, 32, 192, 193, 256, 257, 384, 385, 1000] {
        let samples = rows * MICRO_BATCHES as i64;
        let x = Tensor::randn([samples, 12], (Kind::Float, Device::Cpu));
        compare(&chain, &x, rows);
    }
}

/// Compares a step of the chain with plain autograd and sums on this thread, with all kernels.
fn compare(chain: &Chain, x: &Tensor, rows: i64) {
    let y = Tensor::randint(5, [x.size()[0]], (Kind::Int64, Device::Cpu));
    for kernels in [Kernels::Libtorch, Kernels::OneDnn { from: 0 }] {
        for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
            let mut pipe = Pipeline::builder(sequential(chain))
                .devices(&cpus(2))
                .micro_batches(MICRO_BATCHES)
                .schedule(schedule)
                .threads_per_stage(1)
                .kernels(kernels)
                .build()
                .unwrap();
            let plain = Plain::like(chain, &mut pipe);
            pipe.train_step(x, &y, cross_entropy).unwrap();
            let _scope = kernels.scope().unwrap();
            plain.accumulate(x, &y, &[rows; MICRO_BATCHES]);
            let what = format!("{rows} rows, {schedule}, {kernels}");
            assert_same_bits(&gradients(&mut pipe), &plain.gradients(), &what);
        }
    }
}

/// A convolution whose weight is larger than its input.
fn large(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    let config = nn::ConvConfig {
        padding: 1,
        ..Default::default()
    };
    Box::new(nn::conv2d(path, 12, 128, 3, config))
}

/// A convolution with 1 x 1 kernels and stride 2.
fn strided(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    let config = nn::ConvConfig {
        stride: 2,
        bias: false,
        ..Default::default()
    };
    Box::new(nn::conv2d(path, 128, 64, 1, config))
}

fn flat_head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    let linear = nn::linear(path, 64 * 4, 5, nn::LinearConfig::default());
    Box::new(nn::func(move |x| x.tanh().flatten(1, -1).apply(&linear)))
}

#[test]
fn convolutions_that_add_have_the_bits_of_a_convolution_and_a_sum() {
    single_threaded();
    let chain: Chain = vec![("large", large), ("strided", strided), ("head", flat_head)];
    for rows in [1, 2, 7, 40] {
        let samples = rows * MICRO_BATCHES as i64;
        let x = Tensor::randn([samples, 12, 4, 4], (Kind::Float, Device::Cpu));
        compare(&chain, &x, rows);
    }
}
