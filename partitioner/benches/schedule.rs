//! Time of decisions about schedules: generate, check and simulate 1F1B with 512 devices and 4,096
//! micro-batches (4.2 million actions), in under 5 s and 2 GiB.
//!
//! Also their growth with devices, chunks and micro-batches.
//!
//! `cargo bench -p gpipe-partitioner --bench schedule`; on Linux the peak of the
//! process's memory is printed at the end.
#![allow(missing_docs)]

mod growth;

use criterion::{Criterion, criterion_group};
use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};
use growth::{Report, grows};
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

/// Growth for every schedule: there are p v m actions, and a time stated as linear in actions is
/// linear in each. V schedules look at all devices for every placement, and with halves at all
/// waiting passes.
fn growing(report: &mut Report) {
    let micro_batches = [128, 256, 512, 1024, 2048];
    let devices = [8, 16, 32, 64, 128];
    for kind in ScheduleKind::ALL {
        if kind == ScheduleKind::Auto {
            continue;
        }
        let v = kind.default_chunks();
        let vee = matches!(
            kind,
            ScheduleKind::Zbv | ScheduleKind::VHalf | ScheduleKind::VMin | ScheduleKind::DualPipeV
        );
        let over = |p, m| decide(kind, Shape::new(p, m).with_chunks(v));
        grows(
            report,
            &format!("{kind} in micro-batches, p = 16"),
            1.0,
            &micro_batches,
            |m| over(16, m),
        );
        let power = if vee { 2.0 } else { 1.0 };
        grows(
            report,
            &format!("{kind} in devices, m = 256"),
            power,
            &devices,
            |p| over(p, 256),
        );
    }
    let chunks = [1, 2, 4, 8, 16];
    let kind = ScheduleKind::Interleaved1F1B;
    grows(
        report,
        "interleaved-1f1b in chunks, p = 16, m = 256",
        1.0,
        &chunks,
        |v| decide(kind, Shape::new(16, 256).with_chunks(v)),
    );
    let auto = |p, m| decide(ScheduleKind::Auto, Shape::new(p, m));
    grows(
        report,
        "auto in micro-batches, p = 8",
        1.0,
        &[32, 64, 128, 256],
        |m| auto(8, m),
    );
    grows(
        report,
        "auto in devices, m = 64",
        1.0,
        &[4, 8, 16, 32],
        |p| auto(p, 64),
    );
}

criterion_group!(benches, large);

fn main() -> anyhow::Result<()> {
    benches();
    if std::env::args().any(|argument| argument == "--bench") {
        let mut report = Report::new("schedule");
        growing(&mut report);
        report.write()?;
    }
    Criterion::default().configure_from_args().final_summary();
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|line| line.starts_with("VmHWM"));
        eprintln!("peak memory: {}", peak.unwrap_or("unknown"));
    }
    Ok(())
}
