//! How long schedules take to be decided: generate, check and simulate 1F1B with
//! 512 devices and 4,096 micro-batches (4.2 million actions), in under 5 s and 2 GiB.
//!
//! `cargo bench -p gpipe-partitioner --bench schedule`; on Linux the peak of the
//! process's memory is printed at the end.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group};
use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};
use std::hint::black_box;

fn decide(kind: ScheduleKind, shape: Shape) -> Micros {
    let unit = Micros::new(1.0).unwrap_or_default();
    let schedule = kind
        .generate(shape)
        .expect("the shape is one that the schedule has");
    simulate(&schedule, &Costs::uniform(shape.stages(), unit, unit, unit)).makespan()
}

fn large(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generate-check-simulate");
    group.sample_size(10);
    let cases = [
        (ScheduleKind::OneFOneB, Shape::new(512, 4096)),
        (ScheduleKind::ZbH1, Shape::new(64, 1024)),
        (ScheduleKind::VMin, Shape::new(64, 1024).with_chunks(2)),
    ];
    for (kind, shape) in cases {
        let name = format!("{kind}/{}x{}", shape.devices, shape.micro_batches);
        group.bench_function(name, |bencher| {
            bencher.iter(|| decide(black_box(kind), black_box(shape)));
        });
    }
    group.finish();
}

criterion_group!(benches, large);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|line| line.starts_with("VmHWM"));
        eprintln!("peak memory: {}", peak.unwrap_or("unknown"));
    }
}
