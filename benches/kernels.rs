//! Times of matrix products and convolutions with libtorch's choice of kernels and with oneDNN's, on one
//! thread: forward, input gradient, weight gradient. See `benches/README.md`.

use std::time::Instant;

use gpipe::settings::Kernels;
use gpipe::tch::{self, Device, Kind, Tensor};

/// Runs of each operator; the minimum counts, since interference only adds time.
const RUNS: usize = 15;
const BOTH: [Kernels; 2] = [Kernels::Libtorch, Kernels::ONEDNN];

/// An operator of a workload of `benches/peers`, with its number of runs per micro-batch.
struct Operator {
    name: String,
    input: Vec<i64>,
    weight: Vec<i64>,
    stride: i64,
    times: usize,
}

/// The convolutions of ResNet-101 on four images of 64 x 64: channels in and out, kernel, stride, side.
fn convolutions() -> Vec<Operator> {
    const SAMPLES: i64 = 4;
    let shapes = [
        (3, 64, 7, 2, 64, 1),
        (64, 64, 1, 1, 16, 1),
        (64, 64, 3, 1, 16, 3),
        (64, 256, 1, 1, 16, 4),
        (256, 64, 1, 1, 16, 2),
        (256, 128, 1, 1, 16, 1),
        (128, 128, 3, 2, 16, 1),
        (128, 512, 1, 1, 8, 4),
        (256, 512, 1, 2, 16, 1),
        (512, 128, 1, 1, 8, 3),
        (128, 128, 3, 1, 8, 3),
        (512, 256, 1, 1, 8, 1),
        (256, 256, 3, 2, 8, 1),
        (256, 1024, 1, 1, 4, 23),
        (512, 1024, 1, 2, 8, 1),
        (1024, 256, 1, 1, 4, 22),
        (256, 256, 3, 1, 4, 22),
        (1024, 512, 1, 1, 4, 1),
        (512, 512, 3, 2, 4, 1),
        (512, 2048, 1, 1, 2, 3),
        (1024, 2048, 1, 2, 4, 1),
        (2048, 512, 1, 1, 2, 2),
        (512, 512, 3, 1, 2, 2),
    ];
    let operator =
        |(from, to, kernel, stride, side, times): (i64, i64, i64, i64, i64, usize)| Operator {
            name: format!("{from} to {to}, {kernel} x {kernel}, stride {stride}, {side} x {side}"),
            input: vec![SAMPLES, from, side, side],
            weight: vec![to, from, kernel, kernel],
            stride,
            times,
        };
    shapes.into_iter().map(operator).collect()
}

/// The linear layers of the decoder (256 rows) and of the deep perceptron (16 to 256 rows).
fn products() -> Vec<Operator> {
    let decoder = [
        (256, 256, 768),
        (256, 256, 256),
        (256, 256, 1024),
        (256, 1024, 256),
        (256, 256, 512),
    ];
    let perceptron = [16, 32, 64, 128, 256].map(|rows| (rows, 1024, 1024));
    let operator = |(rows, from, to): (i64, i64, i64)| Operator {
        name: format!("{rows} rows, {from} to {to}"),
        input: vec![rows, from],
        weight: vec![to, from],
        stride: 1,
        times: 1,
    };
    decoder
        .into_iter()
        .chain(perceptron)
        .map(operator)
        .collect()
}

impl Operator {
    fn apply(&self, input: &Tensor, weight: &Tensor) -> Tensor {
        if self.weight.len() == 2 {
            return input.linear(weight, None::<&Tensor>);
        }
        let padding = self.weight[2] / 2;
        input.conv2d(weight, None::<&Tensor>, self.stride, padding, 1, 1)
    }

    /// Microseconds of the forward, the input gradient and the weight gradient.
    fn micros(&self) -> [f64; 3] {
        let [input, weight] = [&self.input, &self.weight]
            .map(|shape| Tensor::randn(shape, (Kind::Float, Device::Cpu)));
        let forward = || {
            tch::no_grad(|| {
                let start = Instant::now();
                drop(self.apply(&input, &weight));
                start.elapsed()
            })
        };
        let backward = |of_input: bool| {
            let input = input.detach().set_requires_grad(of_input);
            let weight = weight.detach().set_requires_grad(!of_input);
            let result = self.apply(&input, &weight);
            let gradient = result.ones_like();
            let wanted = if of_input { &input } else { &weight };
            let loss = (&result * &gradient).sum(Kind::Float);
            let start = Instant::now();
            drop(Tensor::run_backward(&[loss], &[wanted], false, false));
            start.elapsed()
        };
        let least = |run: &dyn Fn() -> std::time::Duration| {
            let times = (0..RUNS).map(|_| run().as_secs_f64() * 1e6);
            times.fold(f64::INFINITY, f64::min)
        };
        [
            least(&forward),
            least(&|| backward(true)),
            least(&|| backward(false)),
        ]
    }
}

fn compare(title: &str, operators: &[Operator]) {
    println!("{title}, microseconds (forward, input, weight) with libtorch's choice | with oneDNN");
    let mut sums = [[0.0; 3]; 2];
    for operator in operators {
        let mut told = Vec::new();
        for (kernels, sums) in BOTH.into_iter().zip(&mut sums) {
            let _scope = kernels.scope().expect("libtorch has oneDNN");
            let micros = operator.micros();
            told.push(micros.map(|time| format!("{time:8.0}")).join(" "));
            for (sum, time) in sums.iter_mut().zip(micros) {
                #[allow(clippy::cast_precision_loss, reason = "a small number")]
                let times = operator.times as f64;
                *sum += times * time;
            }
        }
        println!(
            "{:<42} {}   {} times",
            operator.name,
            told.join(" | "),
            operator.times
        );
    }
    let sums = sums.map(|sums| sums.map(|sum| format!("{sum:8.0}")).join(" "));
    println!("{:<42} {}\n", "all", sums.join(" | "));
}

fn main() {
    let _ = tch::get_num_threads();
    tch::set_num_threads(1);
    compare("ResNet-101, four images", &convolutions());
    compare("Linear layers", &products());
}
