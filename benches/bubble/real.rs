//! Bubble of two stages that compute: sixteen equal linear layers.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode};
use gpipe::models::{Mlp, mlp};
use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::{Pipeline, report::StepReport};
use gpipe_partitioner::{ScheduleKind, Shape};

use super::cases::closed_form;
use super::engine_support::duration;
use super::report_support::{Report, median};
use super::{Row, SAMPLES, Step, measuring};

const WIDTH: i64 = 512;
const LAYERS: usize = 16;
const BATCH: i64 = 1024;
const DEVICES: usize = 2;

fn pipeline(kind: ScheduleKind, devices: usize, micro_batches: usize) -> Pipeline {
    let sizes = Mlp {
        inputs: WIDTH,
        hidden: WIDTH,
        depth: LAYERS - 1,
        outputs: WIDTH,
    };
    let chunks = if devices == 1 {
        1
    } else {
        kind.default_chunks()
    };
    let stages = devices * chunks;
    Pipeline::builder(mlp(sizes))
        .devices(&vec![Device::Cpu; devices])
        .chunks(chunks)
        .balance(&vec![LAYERS / stages; stages])
        .schedule(kind)
        .micro_batches(micro_batches)
        .threads_per_stage(1)
        .build()
        .expect("the balance covers the model")
}

/// One training step without the optimizer, as covered by the schedule.
fn step(pipe: &mut Pipeline, x: &Tensor, y: &Tensor) -> StepReport {
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let report = pipe.train_step(x, y, loss).expect("a plain model trains");
    pipe.zero_grad().expect("the stages are alive");
    report
}

/// The input requires a gradient: otherwise the first layer's backward would lack one product, and the stages
/// would differ.
fn data() -> (Tensor, Tensor) {
    let random = || Tensor::randn([BATCH, WIDTH], (Kind::Float, Device::Cpu));
    (random().set_requires_grad(true), random())
}

/// Every schedule that trains, and the speed-up of two stages over one.
pub fn stages(c: &mut Criterion, micro_batches: &[usize], report: &mut Report) -> Vec<Row> {
    let (x, y) = data();
    let mut rows = Vec::new();
    for kind in ScheduleKind::ALL {
        if kind == ScheduleKind::ForwardOnly {
            continue;
        }
        for &m in micro_batches {
            rows.extend(schedule(c, kind, m, &x, &y));
        }
    }
    if !rows.is_empty() && measuring() {
        speed_up(&x, &y, report);
    }
    rows
}

fn schedule(
    c: &mut Criterion,
    kind: ScheduleKind,
    m: usize,
    x: &Tensor,
    y: &Tensor,
) -> Option<Row> {
    let steps = RefCell::new(Vec::new());
    let simulated = RefCell::new(Vec::new());
    let mut pipe = None;
    let mut group = c.benchmark_group("bubble/real");
    group.sampling_mode(SamplingMode::Flat);
    group.measurement_time(Duration::from_secs(2));
    group.bench_function(BenchmarkId::new(kind.name(), format!("p2/m{m}")), |b| {
        let pipe = pipe.get_or_insert_with(|| {
            let mut pipe = pipeline(kind, DEVICES, m);
            step(&mut pipe, x, y);
            pipe
        });
        b.iter_custom(|count| {
            let mut one = || {
                let report = step(pipe, x, y);
                let numbers = report.read().expect("stages on the CPU have their numbers");
                let taken = Step {
                    measured: duration(numbers.timeline.makespan()),
                    simulated: duration(numbers.predicted().makespan()),
                    replay: duration(numbers.predicted().makespan()),
                    idle: numbers.bubble_measured(),
                };
                simulated.borrow_mut().push(numbers.bubble_predicted());
                steps.borrow_mut().push(taken);
                taken.measured
            };
            (0..count).map(|_| one()).sum()
        });
    });
    group.finish();
    let shape = Shape::new(DEVICES, m).with_chunks(kind.default_chunks());
    let about = Row {
        stages: "real",
        times: "measured".to_owned(),
        schedule: kind.name(),
        devices: DEVICES,
        micro_batches: m,
        bubble_formula: closed_form(kind, shape),
        bubble_simulated: median(simulated.into_inner()),
        bubble_measured: 0.0,
        simulated_ms: median(
            steps
                .borrow()
                .iter()
                .map(|step: &Step| step.simulated.as_secs_f64() * 1e3)
                .collect(),
        ),
        best: 0.0,
        median: 0.0,
        over_replay: 0.0,
        all_ms: Vec::new(),
    };
    Row::new(&steps.into_inner(), about)
}

/// Runs steps of one and of two stages in turn, so that a drift of the machine's speed affects both: the
/// share of the schedule's possible speed-up that is reached.
fn speed_up(x: &Tensor, y: &Tensor, report: &mut Report) {
    const MICRO_BATCHES: usize = 8;
    const PAIRS: usize = 40;
    let kind = ScheduleKind::OneFOneB;
    let (mut one, mut two) = (
        pipeline(kind, 1, MICRO_BATCHES),
        pipeline(kind, DEVICES, MICRO_BATCHES),
    );
    let timed = |pipe: &mut Pipeline| {
        let start = Instant::now();
        step(pipe, x, y);
        start.elapsed().as_secs_f64()
    };
    let (mut ratios, mut singles, mut doubles) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS + SAMPLES {
        let (single, double) = (timed(&mut one), timed(&mut two));
        if pair >= SAMPLES {
            ratios.push(single / double);
            singles.push(single * 1e3);
            doubles.push(double * 1e3);
        }
    }
    let possible = (MICRO_BATCHES * DEVICES) as f64 / (MICRO_BATCHES + DEVICES - 1) as f64;
    let ratio = median(ratios);
    println!(
        "1f1b, {MICRO_BATCHES} micro-batches, a step: one stage {:.1} ms, two {:.1} ms, speed-up \
         {ratio:.3} of {possible:.3} possible",
        median(singles),
        median(doubles)
    );
    report.at_least(
        "speed-up of two stages over one, of what 1f1b allows (16 linear layers, m = 8)",
        ratio / possible * 100.0,
        95.0,
        "%",
    );
}
