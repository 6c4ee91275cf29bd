//! Activation memory under every schedule and recompute mode, and the cost of counting: the same operations
//! before and after libtorch's CPU allocator starts to count. See `benches/README.md`.

mod report_support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpipe::memory::{self, Account};
use gpipe::models::{Mlp, mlp};
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{self, Device, Kind, Reduction, Tensor};
use gpipe::{Optimizer, Pipeline, optim::AdamW, settings::Recompute};
use report_support::Report;

/// Rounds; the fastest is reported, the others were disturbed.
const ROUNDS: usize = 60;

/// An operation, and its number of runs per round.
struct Case {
    name: &'static str,
    repeats: u32,
    run: Box<dyn Fn()>,
}

fn case(name: &'static str, repeats: u32, run: impl Fn() + 'static) -> Case {
    let run = Box::new(run);
    Case { name, repeats, run }
}

fn zeros(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, (Kind::Float, Device::Cpu))
}

fn cases() -> Vec<Case> {
    let (x, y) = (zeros(&[32]), zeros(&[32]));
    let (a, b) = (zeros(&[512, 512]), zeros(&[512, 512]));
    let bytes = |count: i64| {
        move || {
            drop(black_box(Tensor::empty(
                [count],
                (Kind::Uint8, Device::Cpu),
            )))
        }
    };
    vec![
        case("add of 32 floats", 5000, move || drop(black_box(&x + &y))),
        case("128 bytes, untouched", 5000, bytes(128)),
        case("1 MiB, untouched", 500, bytes(1 << 20)),
        case("1 MiB, filled by an add", 100, move || {
            drop(black_box(&a + &b))
        }),
    ]
}

fn fastest(case: &Case) -> Duration {
    let round = || {
        let start = Instant::now();
        (0..case.repeats).for_each(|_| (case.run)());
        start.elapsed() / case.repeats
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}

/// Sixteen linear layers of 512 features over two devices, 1,024 samples in 8
/// micro-batches, `AdamW`: the second of two steps.
fn peaks(report: &mut Report, kind: ScheduleKind, mode: &str, recompute: Recompute) {
    const WIDTH: i64 = 512;
    let chunks = kind.default_chunks();
    let sizes = Mlp {
        inputs: WIDTH,
        hidden: WIDTH,
        depth: 15,
        outputs: WIDTH,
    };
    let mut pipe = Pipeline::builder(mlp(sizes))
        .devices(&[Device::Cpu; 2])
        .chunks(chunks)
        .balance(&vec![8 / chunks; 2 * chunks])
        .schedule(kind)
        .recompute(recompute)
        .micro_batches(8)
        .measure_memory(true)
        .build()
        .expect("the balance covers the model");
    let mut optimizer = Optimizer::new(AdamW::default());
    let x = zeros(&[1024, WIDTH]);
    let mut step = || {
        let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
        let step = pipe.train_step(&x, &x, loss).expect("a plain model trains");
        optimizer.step(&mut pipe).expect("the stages are alive");
        step.memory.expect("memory is measured")
    };
    step();
    for (device, used) in step().devices.iter().enumerate() {
        let [held, predicted, peak, total] =
            [used.held, used.predicted, used.peak, used.total].map(mebibytes);
        println!(
            "  {:<16} {mode:<12} {device} {held:>9.2} {predicted:>9.2} {peak:>9.2} {total:>9.2}",
            kind.name()
        );
        report.row(serde_json::json!({
            "schedule": kind.name(), "recompute": mode, "device": device, "held_mib": held,
            "predicted_mib": predicted, "peak_mib": peak, "total_mib": total,
        }));
        if kind == ScheduleKind::OneFOneB && device == 0 {
            let what = format!("1f1b, recompute {mode}: held between actions, of that predicted");
            report.at_most(what, 100.0 * held / predicted, 105.0, "%");
        }
    }
}

fn all_peaks(report: &mut Report) {
    println!(
        "MiB of activations: held between actions, the same predicted, peak; peak of everything"
    );
    for kind in ScheduleKind::ALL {
        if kind == ScheduleKind::ForwardOnly {
            continue;
        }
        peaks(report, kind, "never", Recompute::Never);
        peaks(report, kind, "except-last", Recompute::ExceptLast);
        peaks(report, kind, "always", Recompute::Always);
    }
}

fn main() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let cases = cases();
    let before: Vec<_> = cases.iter().map(fastest).collect();
    memory::install().expect("nobody else has replaced the allocator");
    let after: Vec<_> = cases.iter().map(fastest).collect();
    let account = Account::new().expect("counting is installed");
    let scope = account.enter();
    println!("nanoseconds: plain, counted, counted on an account");
    for ((case, before), after) in cases.iter().zip(before).zip(after) {
        let scoped = fastest(case);
        println!(
            "  {:<25} {:>8} {:>8} {:>8}",
            case.name,
            before.as_nanos(),
            after.as_nanos(),
            scoped.as_nanos()
        );
    }
    drop(scope);
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let mut report = Report::new("memory");
    all_peaks(&mut report);
    report.write()
}
