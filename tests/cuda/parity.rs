//! The same numbers for all cuts and schedules, and nearly those of the CPU.

use gpipe::partitioner::{Bytes, ScheduleKind, Shape};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, Sequential, Values,
    layers::Context,
    optim::{AdamW, OptimizerKind, Sgd},
    settings::{Precision, Recompute},
};

use crate::harness::{Test, note, skip};
use crate::rounds;
use crate::support::everywhere::{Closure, batch8, plain_linear};
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, cross_entropy, snapshot};

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
        (
            "parity::tensors_may_overlap_themselves_and_have_gaps",
            sparse_strides,
        ),
        (
            "parity::values_that_share_memory_do_so_on_other_devices",
            shared_memory,
        ),
    ]
}

struct Numbers {
    losses: Vec<f64>,
    values: Vec<(String, Tensor)>,
}

fn trained(mut pipe: Pipeline, model: &Model, update: OptimizerKind) -> Numbers {
    let mut optimizer = Optimizer::new(update);
    let (x, y) = (model.batch)(8);
    let losses = (0..3).map(|_| {
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.clip_grad_norm(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
        report.read().unwrap().loss
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
    update: OptimizerKind,
) -> Numbers {
    let pipe = Pipeline::builder(model.sequential())
        .devices(devices)
        .micro_batches(4)
        .schedule(schedule)
        .recompute(recompute.clone())
        .deterministic(true)
        .seed(3)
        .build()
        .unwrap();
    trained(pipe, model, update)
}

fn fits(model: &Model, devices: usize, schedule: ScheduleKind) -> bool {
    let shape = Shape {
        devices,
        chunks: schedule.default_chunks(),
        micro_batches: 4,
    };
    shape.stages() <= model.parts.len() && schedule.generate(shape).is_ok()
}

fn same_everywhere(model: &Model) {
    let train = |devices: &[Device], schedule, recompute: &Recompute| {
        on(model, devices, schedule, recompute, AdamW::default().into())
    };
    let plain = train(&[GPU], ScheduleKind::GPipe, &Recompute::Never);
    note("losses", plain.losses.clone());
    let mut cases = 0;
    for stages in [1, 2, 4] {
        for schedule in ScheduleKind::ALL {
            if schedule == ScheduleKind::ForwardOnly {
                continue;
            }
            let recompute = [Recompute::Never, Recompute::Always][cases % 2].clone();
            let case = format!("{} {schedule}, {stages} devices, {recompute}", model.name);
            if !fits(model, stages, schedule) {
                continue;
            }
            cases += 1;
            if rounds::has_turn(cases) {
                let numbers = train(&vec![GPU; stages], schedule, &recompute);
                assert_eq!(plain.losses, numbers.losses, "{case}");
                assert_same_bits(&plain.values, &numbers.values, &case);
            }
        }
    }
    assert!(cases > 20, "{cases}");
}

/// Uses SGD, whose update is proportional to the gradient: for a gradient of mere rounding errors, such as
/// that of the keys' bias (softmax ignores it), AdamW makes a full-size step in a random direction.
fn near_the_cpu(devices: &[Device]) {
    let sgd = Sgd {
        lr: 0.1,
        ..Sgd::default()
    };
    let train = |model: &Model, devices: &[Device]| {
        let schedule = ScheduleKind::OneFOneB;
        on(model, devices, schedule, &Recompute::Never, sgd.into())
    };
    for model in [models::mlp(), models::transformer(0.0), models::tied()] {
        let cpus = vec![Device::Cpu; devices.len()];
        let (here, there) = (train(&model, &cpus), train(&model, devices));
        let case = format!("losses of {} on {devices:?}", model.name);
        note(&case, there.losses.clone());
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
    if gpipe::device::cuda_available().unwrap() < 2 {
        skip("one device: nothing to compare");
    }
    let model = models::transformer(0.1);
    let two = [GPU, Device::Cuda(1)];
    let train = |devices: &[Device]| {
        let (schedule, recompute) = (ScheduleKind::OneFOneB, Recompute::Never);
        let update = AdamW::default().into();
        on(&model, devices, schedule, &recompute, update)
    };
    let (one, two) = (train(&[GPU; 2]), train(&two));
    note("losses", one.losses.clone());
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
        pipe.train_step(&x, &y, model.loss)
            .unwrap()
            .read()
            .unwrap()
            .loss
    };
    let full = step(Precision::F32);
    for precision in [Precision::Bf16, Precision::Fp16] {
        let short = step(precision);
        note(&format!("loss in {precision}"), short);
        assert!(
            (full - short).abs() < 0.05 * full,
            "{precision}: {full} {short}"
        );
    }
}

/// Non-dense host tensors. Regression test: the copy to a device failed for overlapping elements (libtorch
/// does not write into such tensors), and used unpinned memory for gaps.
fn sparse_strides() {
    let wide = Tensor::arange(128, (Kind::Float, Device::Cpu)).view([8, 16]) / 128.0;
    let inputs = [
        wide.narrow(1, 3, 8),
        wide.narrow(0, 0, 8).slice(1, 0, 16, 2),
        wide.narrow(0, 0, 1).narrow(1, 0, 8).expand([8, 8], false),
        wide.narrow(1, 0, 8).transpose(0, 1),
    ];
    let target = Tensor::ones([1, 1], (Kind::Float, Device::Cpu)).expand([8, 8], false);
    let loss = |x: &Tensor, y: &Tensor, devices: &[Device]| {
        // The first stage's output and its gradient are not dense either.
        let model = Sequential::new()
            .layer("one", |p| nn::linear(p, 8, 16, nn::LinearConfig::default()))
            .layer("half", |_| nn::func(|x| x.narrow(1, 4, 8)))
            .layer("sum", |_| nn::func(|x| x * 2.0))
            .layer("spread", |_| {
                nn::func(|x| {
                    x.sum_dim_intlist(1, true, Kind::Float)
                        .expand([-1, 8], false)
                })
            });
        let mut pipe = Pipeline::builder(model)
            .devices(devices)
            .balance(&[2, 2])
            .micro_batches(2)
            .deterministic(true)
            .seed(3)
            .build()
            .unwrap();
        let mse = |out: &Tensor, y: &Tensor| out.mse_loss(y, gpipe::tch::Reduction::Mean);
        let report = pipe.train_step(x, y, mse).unwrap();
        let norm = pipe.clip_grad_norm(1e9).unwrap();
        (report.read().unwrap().loss, norm)
    };
    for x in &inputs {
        for devices in [[GPU; 2], [GPU, Device::Cpu], [Device::Cpu, GPU]] {
            let (sparse, norm) = loss(x, &target, &devices);
            let dense = loss(&x.contiguous(), &target.contiguous(), &devices);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
            assert!(
                near(sparse, dense.0) && near(norm, dense.1),
                "{devices:?}, strides {:?}",
                x.stride()
            );
        }
    }
}

/// Four layers; the third changes a value that others share memory with.
fn sharing() -> Sequential {
    fn handle(x: &Values, number: usize) -> Tensor {
        x.get(number).unwrap().shallow_clone()
    }
    let layer = |body: fn(Values, &nn::Linear) -> Values| {
        move |path: &nn::Path<'_>| {
            let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
            Closure(move |x: Values, _: &Context| Ok(body(x, &linear)))
        }
    };
    let give = layer(|x, linear| {
        let x = x.into_one().unwrap().apply(linear);
        vec![x.narrow(1, 0, 6), x.narrow(1, 2, 6), x.narrow(1, 1, 1)].into()
    });
    let write = layer(|x, _| {
        let _ = handle(&x, 0).g_mul_scalar_(2.0);
        x
    });
    let join = layer(|x, linear| {
        let (a, b, c) = (handle(&x, 0), handle(&x, 1), handle(&x, 2));
        let joined = Tensor::cat(&[&a.sin(), &b.narrow(1, 4, 2)], 1) * c;
        joined.apply(linear).into()
    });
    let model = plain_linear(Sequential::new(), "in").layer("give", give);
    model.layer("write", write).layer("join", join)
}

/// Values are copied to another device, or to the host and back.
fn shared_memory() {
    let other = match gpipe::device::cuda_available().unwrap() {
        0 | 1 => GPU,
        _ => Device::Cuda(1),
    };
    let train = |balance: &[usize], schedule, recompute: &Recompute| {
        let stages: Vec<usize> = (0..balance.len()).collect();
        let pipe = Pipeline::builder(sharing())
            .devices(&[GPU, other][..balance.len()])
            .balance(balance)
            .micro_batches(3)
            .schedule(schedule)
            .recompute(recompute.clone())
            .offload(&stages[..if balance.len() > 1 { 2 } else { 0 }])
            .offload_at_least(Bytes(1))
            .deterministic(true)
            .seed(3);
        let mut pipe = pipe.build().unwrap();
        let (x, y) = batch8();
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        Optimizer::new(Sgd::default()).step(&mut pipe).unwrap();
        let values = snapshot(&mut pipe).into_iter();
        let values = values.map(|(name, value)| (name, value.to_device(Device::Cpu)));
        (report.read().unwrap().loss, values.collect::<Vec<_>>())
    };
    let (loss, values) = train(&[4], ScheduleKind::GPipe, &Recompute::Never);
    for recompute in [Recompute::Never, Recompute::Always] {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::ZbH1] {
            for balance in [[2, 2], [3, 1], [1, 3]] {
                let case = format!("{schedule} {balance:?} {recompute}");
                let own = train(&balance, schedule, &recompute);
                assert_eq!(own.0, loss, "{case}");
                assert_same_bits(&own.1, &values, &case);
            }
        }
    }
}
