//! The same numbers over cuts and schedules, and nearly those of the CPU.

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::{Device, Tensor};
use gpipe::{AdamW, Optimizer, Pipeline, Precision, Recompute};

use crate::harness::Test;
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, snapshot};

const GPU: Device = Device::Cuda(0);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        (
            "parity::mlp_has_the_same_bits_over_cuts_and_schedules",
            || {
                same_everywhere(&models::mlp());
            },
        ),
        (
            "parity::transformer_has_the_same_bits_over_cuts_and_schedules",
            || {
                same_everywhere(&models::transformer(0.0));
            },
        ),
        (
            "parity::dropout_has_the_same_bits_over_cuts_and_schedules",
            || {
                same_everywhere(&models::transformer(0.2));
            },
        ),
        (
            "parity::tied_parameters_have_the_same_bits_over_cuts",
            || {
                same_everywhere(&models::tied());
            },
        ),
        ("parity::skips_have_the_same_bits_over_cuts", || {
            same_everywhere(&models::unet())
        }),
        ("parity::numbers_are_nearly_those_of_the_cpu", || {
            near_the_cpu(&[GPU; 2])
        }),
        ("parity::cpu_and_gpu_stages_mix", || {
            near_the_cpu(&[GPU, Device::Cpu]);
            near_the_cpu(&[Device::Cpu, GPU]);
            near_the_cpu(&[GPU, Device::Cpu, GPU]);
        }),
        ("parity::two_gpus_give_the_bits_of_one", two_gpus),
        ("parity::shorter_types_train", shorter_types),
    ]
}

struct Numbers {
    losses: Vec<f64>,
    values: Vec<(String, Tensor)>,
}

fn trained(mut pipe: Pipeline, model: &Model) -> Numbers {
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    let losses = (0..3).map(|_| {
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.clip_grad_norm(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
        report.loss
    });
    let losses = losses.collect();
    let values = snapshot(&mut pipe).into_iter();
    let values = values.map(|(name, value)| (name, value.to_device(Device::Cpu)));
    Numbers {
        losses,
        values: values.collect(),
    }
}

fn on(
    model: &Model,
    devices: &[Device],
    schedule: ScheduleKind,
    recompute: &Recompute,
) -> Option<Numbers> {
    let shape = Shape {
        devices: devices.len(),
        chunks: schedule.default_chunks(),
        micro_batches: 4,
    };
    let fits = shape.stages() <= model.parts.len() && schedule.generate(shape).is_ok();
    let pipe = fits.then(|| {
        Pipeline::builder(model.sequential())
            .devices(devices)
            .micro_batches(4)
            .schedule(schedule)
            .recompute(recompute.clone())
            .deterministic(true)
            .seed(3)
            .build()
            .unwrap()
    });
    pipe.map(|pipe| trained(pipe, model))
}

fn same_everywhere(model: &Model) {
    let plain = on(model, &[GPU], ScheduleKind::GPipe, &Recompute::Never).unwrap();
    let mut cases = 0;
    for stages in [1, 2, 4] {
        for schedule in ScheduleKind::ALL {
            if schedule == ScheduleKind::ForwardOnly {
                continue;
            }
            let recompute = [Recompute::Never, Recompute::Always][cases % 2].clone();
            let case = format!("{} {schedule}, {stages} devices, {recompute}", model.name);
            if let Some(numbers) = on(model, &vec![GPU; stages], schedule, &recompute) {
                cases += 1;
                assert_eq!(plain.losses, numbers.losses, "{case}");
                assert_same_bits(&plain.values, &numbers.values, &case);
            }
        }
    }
    assert!(cases > 20, "{cases}");
}

fn near_the_cpu(devices: &[Device]) {
    let schedule = ScheduleKind::OneFOneB;
    for model in [models::mlp(), models::transformer(0.0), models::tied()] {
        let cpus = vec![Device::Cpu; devices.len()];
        let here = on(&model, &cpus, schedule, &Recompute::Never).unwrap();
        let there = on(&model, devices, schedule, &Recompute::Never).unwrap();
        for (a, b) in here.losses.iter().zip(&there.losses) {
            assert!(
                (a - b).abs() < 1e-4 * a.abs().max(1.0),
                "{}: {a} {b}",
                model.name
            );
        }
        for ((name, a), (_, b)) in here.values.iter().zip(&there.values) {
            assert!(a.allclose(b, 1e-3, 1e-4, false), "{}: {name}", model.name);
        }
    }
}

fn two_gpus() {
    if gpipe::cuda_available().unwrap() < 2 {
        println!("(one device: nothing to compare)");
        return;
    }
    let model = models::transformer(0.1);
    let two = [GPU, Device::Cuda(1)];
    let one = on(&model, &[GPU; 2], ScheduleKind::OneFOneB, &Recompute::Never).unwrap();
    let two = on(&model, &two, ScheduleKind::OneFOneB, &Recompute::Never).unwrap();
    assert_eq!(one.losses, two.losses);
    assert_same_bits(&one.values, &two.values, "two devices");
}

fn shorter_types() {
    let model = models::transformer(0.0);
    let step = |precision| {
        let mut pipe = Pipeline::builder(model.sequential())
            .devices(&[GPU; 2])
            .micro_batches(2)
            .precision(precision)
            .build()
            .unwrap();
        let (x, y) = (model.batch)(8);
        pipe.train_step(&x, &y, model.loss).unwrap().loss
    };
    let full = step(Precision::F32);
    for precision in [Precision::Bf16, Precision::Fp16] {
        let short = step(precision);
        assert!(
            (full - short).abs() < 0.05 * full,
            "{precision}: {full} {short}"
        );
    }
}
