//! A weight's gradient may be added to the sum of earlier micro-batches by the product that
//! computes it; the bits are those of a product and a sum, whatever the shape.

use crate::support::*;
use gpipe::Pipeline;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};

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

/// A weight that is used as it is stored, and one that is used twice.
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

/// Processors' libraries hold the product of 192, 256 or 384 rows in registers; more they
/// add up in parts.
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
        let y = Tensor::randint(5, [samples], (Kind::Int64, Device::Cpu));
        for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
            let mut pipe = Pipeline::builder(sequential(&chain))
                .devices(&cpus(2))
                .micro_batches(MICRO_BATCHES)
                .schedule(schedule)
                .threads_per_stage(1)
                .build()
                .unwrap();
            let plain = Plain::like(&chain, &mut pipe);
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            plain.accumulate(&x, &y, &[rows; MICRO_BATCHES]);
            let what = format!("{rows} rows, {schedule}");
            assert_same_bits(&gradients(&mut pipe), &plain.gradients(), &what);
        }
    }
}
