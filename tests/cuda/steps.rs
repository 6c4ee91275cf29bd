//! Execution of steps: absence of host waits, device clocks, checkpoints of streams.

use std::time::Duration;

use gpipe::data::{Dataset, Made};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder, Sequential,
    optim::AdamW,
    settings::{LossScale, Precision, Recompute},
};

use crate::apart;
use crate::harness::{self, Test, note};
use crate::lost;
use crate::simulated::fail;
use crate::support::models::{self, Model};
use crate::support::{batch, cross_entropy};

const GPU: Device = Device::Cuda(0);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        (
            "steps::the_host_waits_for_nothing_inside_of_a_step",
            no_waits,
        ),
        ("steps::the_timeline_is_the_devices_own", timeline),
        (
            "steps::the_device_skips_an_overflow_without_the_host",
            no_waits_for_overflows,
        ),
        ("steps::timelines_may_be_read_steps_later", late_timelines),
        ("steps::inputs_may_be_on_the_device", inputs_there),
        ("steps::batches_may_come_ahead", batches_ahead),
        ("steps::stages_go_back_on_their_own_threads", own_backwards),
        (
            "steps::a_device_that_fails_is_named_before_anything_else_goes",
            fails,
        ),
        ("steps::random_batches_leave_no_memory_behind", no_leaks),
    ]
}

pub(crate) fn simulated_tests() -> Vec<Test> {
    let name = "steps::nobody_waits_for_a_gradient_that_does_not_come";
    vec![(name, no_gradient)]
}

/// Two stages and four micro-batches.
fn on_one_card(model: &Model) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&[GPU; 2])
        .micro_batches(4)
}

fn no_waits() {
    for recompute in [Recompute::Never, Recompute::Always] {
        let model = models::transformer(0.1);
        let (x, y) = (model.batch)(8);
        let build = |forbid| {
            on_one_card(&model)
                .recompute(recompute.clone())
                .forbid_host_waits(forbid)
                .build()
                .unwrap()
        };
        // A kernel's loading at its first use is not part of a step.
        build(false).train_step(&x, &y, model.loss).unwrap();
        let mut pipe = build(true);
        let mut optimizer = Optimizer::new(AdamW::default());
        let mut late = Vec::new();
        for _ in 0..3 {
            let report = pipe.train_step(&x, &y, model.loss).unwrap();
            let norm = pipe.clip_gradients(0.1).unwrap();
            optimizer.step(&mut pipe).unwrap();
            late.push((report, norm));
        }
        // Read after all steps, the numbers are those of their own step.
        let mut plain = build(false);
        let mut optimizer = Optimizer::new(AdamW::default());
        for (report, norm) in late {
            assert!(report.read().unwrap().loss.is_finite());
            assert!(report.is_ready() && norm.read().unwrap() > 0.0 && norm.is_ready());
            let at_once = plain.train_step(&x, &y, model.loss).unwrap();
            let loss = at_once.read().unwrap().loss;
            assert!((report.read().unwrap().loss - loss).abs() <= 1e-3 * loss.abs());
            let own = plain.clip_grad_norm(0.1).unwrap();
            assert!((norm.read().unwrap() - own).abs() <= 1e-2 * own);
            optimizer.step(&mut plain).unwrap();
        }
        // A layer that reads a number is detected and named.
        let mut reads = Pipeline::builder(model.sequential())
            .devices(&[GPU])
            .forbid_host_waits(true)
            .build()
            .unwrap();
        let reading = |out: &Tensor, y: &Tensor| {
            let loss = (models::transformer(0.1).loss)(out, y);
            anyhow::ensure!(loss.f_double_value(&[])? < 1e9, "large");
            anyhow::Ok(loss)
        };
        let error = reads.train_step(&x, &y, reading).unwrap_err().to_string();
        assert!(error.contains("layer `loss`"), "{error}");
    }
}

/// The host reads nothing for the finite check, the loss scale, clipping and the update.
fn no_waits_for_overflows() {
    let model = || {
        let linear = nn::LinearConfig::default;
        Sequential::new()
            .layer("one", move |p| nn::linear(p, 64, 64, linear()))
            .layer("two", move |p| nn::linear(p, 64, 64, linear()))
    };
    let build = |forbid| {
        Pipeline::builder(model())
            .devices(&[GPU; 2])
            .micro_batches(4)
            .precision(Precision::Fp16)
            .loss_scale(LossScale {
                initial: 256.0,
                growth_interval: 2,
            })
            .forbid_host_waits(forbid)
            .build()
            .unwrap()
    };
    let x = Tensor::ones([16, 64], (Kind::Float, GPU)) * 0.1;
    let y = Tensor::zeros([16, 64], (Kind::Float, GPU));
    let loss = |times: f64| {
        move |out: &Tensor, y: &Tensor| out.mse_loss(y, gpipe::tch::Reduction::Mean) * times
    };
    // A kernel's loading at its first use is not part of a step.
    let mut first = build(false);
    first.train_step(&x, &y, loss(1.0)).unwrap();
    first.clip_gradients(1.0).unwrap();
    Optimizer::new(AdamW::default()).step(&mut first).unwrap();
    let mut pipe = build(true);
    let mut optimizer = Optimizer::new(AdamW::default());
    let times = [1.0, 1e9, 1.0, 1.0, 1e9, 1.0];
    let reports = times.map(|times| {
        let report = pipe.train_step(&x, &y, loss(times)).unwrap();
        pipe.clip_gradients(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
        report
    });
    let skipped = [false, true, false, false, true, false];
    assert_eq!(
        reports
            .each_ref()
            .map(|report| report.read().unwrap().skipped()),
        skipped
    );
    let scales = [256.0, 256.0, 128.0, 128.0, 256.0, 128.0];
    assert_eq!(
        reports
            .each_ref()
            .map(|report| report.read().unwrap().loss_scale),
        scales.map(Some)
    );
    assert_eq!(pipe.loss_scale(), Some(128.0));
    // The same bits as with a host that reads after every step.
    let mut looks = build(false);
    let mut optimizer = Optimizer::new(AdamW::default());
    for times in times {
        let report = looks.train_step(&x, &y, loss(times)).unwrap();
        let _ = looks.parameters().unwrap();
        if !report.read().unwrap().skipped() {
            looks.clip_grad_norm(1.0).unwrap();
        }
        optimizer.step(&mut looks).unwrap();
    }
    let weights = [&mut pipe, &mut looks].map(|pipe| pipe.parameters().unwrap());
    for ((name, one), (_, other)) in weights[0].iter().zip(&weights[1]) {
        assert!(one.allclose(other, 1e-4, 1e-6, false), "{name}");
    }
}

fn timeline() {
    let model = models::transformer(0.0);
    let mut pipe = on_one_card(&model).build().unwrap();
    let (x, y) = (model.batch)(8);
    pipe.train_step(&x, &y, model.loss).unwrap();
    let report = pipe.train_step(&x, &y, model.loss).unwrap();
    note("share of the host", report.read().unwrap().host_share);
    assert_eq!(report.read().unwrap().timeline.spans().len(), 2 * 2 * 4);
    assert!(
        report
            .read()
            .unwrap()
            .timeline
            .spans()
            .iter()
            .all(|span| span.end > span.start)
    );
    assert!(report.read().unwrap().host_share.unwrap() > 0.0);
}

/// The host may be steps ahead of the device: a step's reported time is still its own, and steps do not
/// overlap.
fn late_timelines() {
    let model = models::transformer(0.0);
    let mut pipe = on_one_card(&model).build().unwrap();
    let (x, y) = (model.batch)(8);
    pipe.train_step(&x, &y, model.loss).unwrap();
    let begin = std::time::Instant::now();
    let step = |_| pipe.train_step(&x, &y, model.loss).unwrap();
    let reports: Vec<_> = (0..8).map(step).collect();
    let makespans = reports
        .iter()
        .map(|report| report.read().unwrap().timeline.makespan().get());
    let sum: f64 = makespans.sum();
    // To a hundredth, since the device's clock and the host's differ.
    assert!(sum <= 1.01 * begin.elapsed().as_secs_f64() * 1e6, "{sum}");
    for report in &reports {
        assert_eq!(report.read().unwrap().timeline.spans().len(), 2 * 2 * 4);
        assert!(report.read().unwrap().host_share.unwrap() > 0.0);
    }
}

fn inputs_there() {
    let model = models::mlp();
    let (x, y) = (model.batch)(8);
    let loss = |x: &Tensor, y: &Tensor| {
        let mut pipe = on_one_card(&model).deterministic(true).build().unwrap();
        pipe.train_step(x, y, model.loss)
            .unwrap()
            .read()
            .unwrap()
            .loss
    };
    let there = (x.to_device(GPU), y.to_device(GPU));
    assert_eq!(loss(&x, &y).to_bits(), loss(&there.0, &there.1).to_bits());
}

fn no_leaks() {
    let model = models::mlp();
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(&[GPU, Device::Cpu, GPU])
        .micro_batches(4)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    let mut step = || {
        let noise = Tensor::randn(x.size(), (Kind::Float, Device::Cpu));
        pipe.train_step(&x + noise, &y, model.loss).unwrap();
        optimizer.step(&mut pipe).unwrap();
        gpipe::tch::Cuda::synchronize(0);
        gpipe::memory::of_device(GPU).unwrap().current
    };
    let levels: Vec<u64> = (0..12).map(|_| step()).collect();
    note("bytes held", levels[11]);
    assert_eq!(
        levels[5..].iter().max(),
        levels[5..].iter().min(),
        "{levels:?}"
    );
}

/// The loader's copies give the same bits as passing the batches directly.
fn batches_ahead() {
    let model = models::mlp();
    let run = |ahead: bool| {
        let items = Made::new(32, |_| {
            let (x, y) = (models::mlp().batch)(1);
            Ok((x.squeeze_dim(0), y.squeeze_dim(0)))
        });
        let batches = Dataset::new(items).batch(8).workers(2);
        let batches = if ahead { batches.to(GPU) } else { batches };
        let mut pipe = on_one_card(&model).deterministic(true).build().unwrap();
        let mut optimizer = Optimizer::new(AdamW::default());
        let losses = batches.load().unwrap().map(|batch| {
            let (x, y) = batch.unwrap();
            assert_eq!(x.device().is_cuda(), ahead);
            let loss = pipe.train_step(&x, &y, model.loss).unwrap();
            drop((x, y));
            optimizer.step(&mut pipe).unwrap();
            loss.read().unwrap().loss.to_bits()
        });
        losses.collect::<Vec<_>>()
    };
    assert_eq!(run(false), run(true));
}

/// Regression test: libtorch has one thread per device, which ran the backwards of all of its stages in
/// sequence.
fn own_backwards() {
    let model = models::transformer(0.0);
    let mut pipe = on_one_card(&model).build().unwrap();
    let (x, y) = (model.batch)(8);
    for _ in 0..50 {
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.zero_grad().unwrap();
    }
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        let (name, rest) = stat.rsplit_once(')').unwrap();
        // CPU time in hundredths of a second: the 14th and 15th field.
        let fields: Vec<u64> = rest
            .split_whitespace()
            .filter_map(|f| f.parse().ok())
            .collect();
        let used = fields[10] + fields[11];
        assert!(!name.contains("pt_autograd") || used <= 3, "{stat}");
    }
}

/// Parts that [`fails`] runs.
pub(crate) const PARTS: [Test; 1] = [("parts::loses_its_device", losing)];

/// An invalid label makes a kernel read out of bounds, which disables the device. Regression test: the next
/// call or free ended the process with a C++ back-trace.
fn fails() {
    let ended = apart::run(&["--one", PARTS[0].0], harness::LIMIT).unwrap();
    // An ordinary error, or a message where none can be returned.
    assert!(matches!(ended.code(), Some(0 | 1)), "{}", ended.why());
    for part in ["CUDA error", "anew"] {
        assert!(ended.output.contains(part), "{}", ended.why());
    }
    // A failure after the last action's call is first noticed by the caller.
    lost::is_placed(&ended.output, "an impossible label");
}

fn losing() {
    let model = models::mlp();
    let mut pipe = on_one_card(&model).build().unwrap();
    let (x, y) = (model.batch)(8);
    let labels = Tensor::full([y.size()[0]], 1_000_000, (Kind::Int64, Device::Cpu));
    let loss = |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y);
    // Reading waits for the end of the step.
    let step = pipe.train_step(&x, &labels, loss);
    let error = match step.map(|report| report.read().map(|_| ())) {
        Ok(Ok(())) => panic!("nothing failed"),
        Ok(Err(error)) | Err(error) => error.to_string(),
    };
    let later = pipe.train_step(&x, &y, model.loss).unwrap_err().to_string();
    assert!(
        error.contains("anew") && later.contains("anew"),
        "{error}; {later}"
    );
}

/// A stage of the host waited for each backward of an accelerator whose gradient it did not get, and
/// was late with what the accelerator needed next.
fn no_gradient() {
    let model = Sequential::new()
        .layer("source", |_| nn::func(|x| x * 2.0))
        .layer("head", |p| nn::linear(p, 8, 5, nn::LinearConfig::default()));
    let mut pipe = Pipeline::builder(model)
        .devices(&[Device::Cpu, Device::Cuda(0)])
        .balance(&[1, 1])
        .micro_batches(2)
        .patience(Duration::from_secs(1))
        .build()
        .unwrap();
    let (x, y) = batch(&[4, 8], 4);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    fail("stall", 1);
    let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert!(!report.is_ready());
}
