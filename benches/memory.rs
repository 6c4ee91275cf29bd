//! What counting costs: the same operations before and after libtorch's CPU
//! allocator starts to count. See `benches/README.md`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpipe::memory::{self, Account};
use gpipe::tch::{self, Device, Kind, Tensor};

/// Of the fastest of so many rounds it is told: others were disturbed.
const ROUNDS: usize = 60;

/// An operation, and how often it runs in a round.
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

fn main() {
    tch::set_num_threads(1);
    let cases = cases();
    let before: Vec<_> = cases.iter().map(fastest).collect();
    memory::install().expect("nobody else has replaced the allocator");
    let after: Vec<_> = cases.iter().map(fastest).collect();
    let account = Account::new().expect("counting is installed");
    let _scope = account.enter();
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
}
