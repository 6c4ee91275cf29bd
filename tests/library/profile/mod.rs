//! The profiler: bytes are exact, nothing is left behind, plans can be trained.

use std::sync::Mutex;
use std::time::Duration;

use gpipe::models::{Gpt, Mlp, gpt, mlp};
use gpipe::partitioner::{
    Machine, PlanOptions, Problem, Profile, ScheduleKind, StageId, StageMemory, plan, simulate,
};
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use gpipe::{
    Error, Optimizer, Pipeline, Sequential, Values,
    layers::Context,
    optim::AdamW,
    profile::{ProfileOptions, ProfileProgress, Profiled, Sample, profile, profile_watched},
};

use crate::support::apart::apart;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn quick(devices: usize) -> ProfileOptions {
    let mut options = ProfileOptions::new(&vec![Device::Cpu; devices]).quick();
    options.budget = Duration::from_millis(1);
    options.threads_per_stage = Some(1);
    options
}

fn small_mlp() -> Sequential {
    mlp(Mlp {
        inputs: 16,
        hidden: 32,
        depth: 4,
        outputs: 4,
    })
}

fn small_gpt() -> Sequential {
    gpt(Gpt {
        vocab: 40,
        context: 16,
        d_model: 32,
        heads: 2,
        blocks: 3,
        dropout: 0.1,
    })
}

fn loss(out: &Tensor, y: &Tensor) -> Tensor {
    let classes = out.size().last().copied().unwrap();
    out.view([-1, classes])
        .cross_entropy_for_logits(&y.view([-1]))
}

fn rows(samples: i64) -> (Tensor, Tensor) {
    let x = Tensor::arange(samples * 16, CPU).view([samples, 16]) / 64.0;
    (
        x,
        Tensor::arange(samples, (Kind::Int64, Device::Cpu)).remainder(4),
    )
}

fn tokens(samples: i64) -> (Tensor, Tensor) {
    let places = Tensor::arange(samples * 16, (Kind::Int64, Device::Cpu));
    let x = (places * 7919).remainder(40).view([samples, 16]);
    (x.copy(), x)
}

fn names(measured: &Profiled) -> Vec<&str> {
    let layers = measured.profile.layers().iter();
    layers.map(|layer| layer.name.as_str()).collect()
}

/// Regression test: a brief profile took as long as the first runs of every size, however long.
#[test]
fn a_first_look_leaves_out_sizes_for_which_there_is_no_time() {
    let (x, y) = rows(8);
    let sample = Sample::new(&x).with_loss(&y, loss);
    for devices in [1, 2] {
        let mut options = quick(devices);
        options.threads_per_stage = None;
        options.sizes = vec![2, 4, 8];
        options.first_runs = Duration::ZERO;
        let measured = profile(&small_mlp(), &sample, &options).unwrap();
        let own = &measured.profile;
        assert_eq!((own.batch(), own.input().get()), (2, 2 * 16 * 4));
        assert!(own.layers().iter().all(|layer| layer.curve.is_empty()));
        let told = measured.doubts.iter().map(ToString::to_string);
        let told: Vec<String> = told
            .filter(|own| own.contains("were not measured"))
            .collect();
        assert!(told[0].contains("more than 2 samples were not measured (wanted were 8)"));
        // A full measurement has all sizes, however long it takes.
        options.brief = false;
        let measured = profile(&small_mlp(), &sample, &options).unwrap();
        assert_eq!(measured.profile.batch(), 8);
    }
}

#[test]
fn bytes_of_an_mlp_are_those_on_paper() {
    let (x, y) = rows(8);
    let sample = Sample::new(&x).with_loss(&y, loss);
    let measured = profile(&small_mlp(), &sample, &quick(2)).unwrap();
    let profile = &measured.profile;
    assert_eq!((profile.batch(), profile.input().get()), (8, 8 * 16 * 4));
    let hidden = &profile.layers()[1];
    assert_eq!(hidden.name, "hidden.1");
    assert_eq!(hidden.parameters.get(), (32 * 32 + 32) * 4);
    assert_eq!(hidden.footprint.output.get(), 8 * 32 * 4);
    // The ReLU's result, which the next layer's product needs as well.
    assert_eq!(hidden.footprint.activations.get(), 8 * 32 * 4);
    assert!(hidden.footprint.temporary.get() >= 8 * 32 * 4);
    let times = measured.times();
    assert_eq!(times.dim(), (profile.layers().len(), 4));
    let same = |column, time: f64| times[[1, column]].to_bits() == time.to_bits();
    assert!(same(0, hidden.times.forward.get()));
    assert!(same(3, hidden.times.joint().get()));
    assert_eq!(
        hidden
            .curve
            .iter()
            .map(|(size, _)| *size)
            .collect::<Vec<_>>(),
        [2, 4]
    );
    assert!(hidden.times.forward.get() > 0.0 && hidden.times.joint().get() > 0.0);
    assert_eq!(names(&measured).len(), 5);
    assert_eq!(measured.spread.len(), 5);
    assert!(measured.link.unwrap().latency.get() > 0.0);
    let again = Profile::from_json(profile.to_json(), "profile.json").unwrap();
    assert_eq!(&again, profile);
}

/// Compares predicted and measured bytes of each device: activations held, and the total peak.
fn peaks(model: &Sequential, sample: &Sample, batch: (Tensor, Tensor), kind: ScheduleKind) {
    let measured = profile(model, sample, &quick(2)).unwrap();
    let mut options = PlanOptions::new(Machine::new(2).unwrap());
    options.schedule = Some(kind);
    options.micro_batches = Some(4);
    options.recompute = gpipe::partitioner::When::Never;
    let plan = plan(&measured.profile, &options).unwrap();
    let mut pipe = Pipeline::builder(model.clone())
        .devices(&[Device::Cpu; 2])
        .threads_per_stage(1)
        .measure_memory(true)
        .plan(&plan)
        .unwrap()
        .build()
        .unwrap();
    let (x, y) = batch;
    let mut optimizer = Optimizer::new(AdamW::default());
    for _ in 0..2 {
        pipe.train_step(&x, &y, loss).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
    let memory = pipe.train_step(&x, &y, loss).unwrap().memory.unwrap();
    let schedule = plan.generate().unwrap();
    let machine = Machine::new(2).unwrap();
    let size = plan.micro_batch_size;
    let problem = Problem::new(&measured.profile, size, &machine, &schedule);
    let costs = problem.stage_costs(&plan.partition, &plan.recompute, &plan.offload);
    // Held between actions, without values in transit to another stage.
    let held = (0..2).map(StageId).fold(costs.clone(), |held, stage| {
        let memory = StageMemory {
            activation: costs.memory(stage).activation,
            kept_for_weight: costs.memory(stage).kept_for_weight,
            ..StageMemory::default()
        };
        held.with_memory(stage, memory)
    });
    let held = simulate(&schedule, &held).peak_bytes();
    let before = plan.partition.range(StageId(1)).start - 1;
    let border = measured.profile.costs(size)[before].output.get();
    for (device, real) in memory.devices.iter().enumerate() {
        // A value in transit to the other device is counted for its sender, but not predicted.
        let apart = held[device].get().abs_diff(real.held.get());
        let allowed = real.held.get() / 10 + 2 * border;
        assert!(
            apart <= allowed,
            "{kind}, device {device}: {held:?} {real:?}"
        );
        let (predicted, total) = (plan.peak_bytes[device].get(), real.total.get());
        assert!(
            predicted.abs_diff(total) <= total / 10 + 2 * border,
            "{kind}, device {device}: {predicted} {real:?}"
        );
    }
}

#[test]
fn what_a_plan_says_that_stages_keep_is_what_they_keep() {
    let (x, y) = tokens(8);
    let sample = Sample::new(&x).with_loss(&y, loss);
    let kinds = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ];
    for kind in kinds {
        peaks(&small_gpt(), &sample, tokens(32), kind);
    }
    let (x, y) = rows(64);
    let sample = Sample::new(&x).with_loss(&y, loss);
    peaks(&small_mlp(), &sample, rows(256), ScheduleKind::OneFOneB);
}

/// Skips, statistics, dropout and in-place changes.
fn awkward() -> Sequential {
    let config = nn::LinearConfig::default;
    Sequential::new()
        .layer("norm", |p| {
            nn::batch_norm1d(p, 16, nn::BatchNormConfig::default())
        })
        .layer("stash", move |p| {
            Stash(nn::linear(p, 16, 16, nn::LinearConfig::default()))
        })
        .stashes("x")
        .layer("in-place", |_| nn::func(|x| x.shallow_clone().relu_()))
        .layer("linear", move |p| nn::linear(p, 16, 16, config()))
        .layer("drop", |_| nn::func_t(|x, train| x.dropout(0.5, train)))
        .layer("pop", |_| Pop)
        .pops("x")
}

#[derive(Debug)]
struct Stash(nn::Linear);
#[derive(Debug)]
struct Pop;

impl gpipe::Layer for Stash {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let out = inputs.into_one()?.apply(&self.0);
        ctx.stash("x", &out)?;
        Ok(out.into())
    }
}

impl gpipe::Layer for Pop {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let x = ctx.pop("x")?.unwrap();
        Ok((inputs.into_one()? + x).into())
    }
}

/// Bytes are those of all threads, so nothing else may run concurrently.
#[test]
fn any_model_is_measured_whole_and_layer_by_layer() {
    let name = "profile::any_model_is_measured_whole_and_layer_by_layer";
    apart(name, every_layer_of_an_awkward_model);
}

fn every_layer_of_an_awkward_model() {
    let (x, _) = rows(8);
    let kept = x.copy();
    let sample = Sample::new(&x);
    let whole = profile(&awkward(), &sample, &quick(2)).unwrap();
    let mut options = quick(1);
    options.low_memory = true;
    options.sizes = vec![8, 4];
    let single = profile(&awkward(), &sample, &options).unwrap();
    assert_eq!(names(&whole), names(&single));
    for (a, b) in whole.profile.layers().iter().zip(single.profile.layers()) {
        assert_eq!(
            (a.parameters, a.footprint.output),
            (b.parameters, b.footprint.output),
            "{}",
            a.name
        );
        assert!(
            a.footprint.activations <= b.footprint.activations,
            "{}",
            a.name
        );
        // A near-empty backward takes no longer than that of a no-op layer, which is subtracted.
        let both = b.times.forward.get() + b.times.joint().get();
        assert!(both > 0.0, "{}: {:?}", b.name, b.times);
    }
    assert!(x.equal(&kept), "the sample is as it was");
    assert_eq!(single.link, None);
}

/// Parameters and loss after two steps, as bits.
fn trained(profiled: bool) -> Vec<Tensor> {
    tch::manual_seed(3);
    let model = awkward();
    let (x, y) = rows(8);
    if profiled {
        let x = x.copy().set_requires_grad(true);
        profile(&model, &Sample::new(&x).with_loss(&y, loss), &quick(2)).unwrap();
        assert!(!x.grad().defined());
    }
    let mut pipe = Pipeline::new(model, &[Device::Cpu; 2], 2).unwrap();
    for _ in 0..2 {
        pipe.train_step(&x, &y, loss).unwrap();
    }
    let mut values: Vec<Tensor> = pipe
        .parameters()
        .unwrap()
        .iter()
        .map(|(_, p)| p.grad())
        .collect();
    values.extend(pipe.buffers().unwrap().into_iter().map(|(_, b)| b));
    values.push(Tensor::rand([4], CPU));
    values
}

#[test]
fn profiling_leaves_no_trace() {
    apart("profile::profiling_leaves_no_trace", || {
        let (with, without) = (trained(true), trained(false));
        assert_eq!(with.len(), without.len());
        for (a, b) in with.iter().zip(&without) {
            assert!(a.equal(b));
        }
    });
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let (x, y) = rows(8);
    let mut options = quick(1);
    options.sizes = vec![9];
    let refused = |model: &Sequential, sample: &Sample, options: &ProfileOptions| {
        profile(model, sample, options).map(drop).unwrap_err()
    };
    let error = refused(&small_mlp(), &Sample::new(&x), &options);
    assert!(
        error.is_wrong_use() && error.to_string().contains("sample of 8"),
        "{error}"
    );
    let error = refused(&small_mlp(), &Sample::new(&x), &ProfileOptions::new(&[]));
    assert!(error.to_string().contains("no devices"), "{error}");
    let error = refused(&Sequential::new(), &Sample::new(&x), &quick(1));
    assert!(error.to_string().contains("no layers"), "{error}");
    let error = refused(&small_mlp(), &Sample::new(&y), &quick(2));
    assert!(matches!(&error, Error::Profile { layer, .. } if layer == "hidden.0"));
    assert!(
        error.to_string().starts_with("layer `hidden.0`, forward: "),
        "{error}"
    );
    let model = small_mlp().try_layer("bad", |_| -> anyhow::Result<nn::Linear> {
        anyhow::bail!("no such file")
    });
    let error = refused(&model, &Sample::new(&x), &quick(2));
    assert!(
        error
            .to_string()
            .contains("`bad` cannot be built: no such file"),
        "{error}"
    );
}

#[test]
fn who_watches_is_told_how_far_it_is() {
    let watched = |low_memory: bool| {
        let (x, y) = rows(8);
        let mut options = quick(1);
        options.low_memory = low_memory;
        options.brief = false;
        let told = Mutex::new(Vec::new());
        let sample = Sample::new(x).with_loss(y, loss);
        profile_watched(&small_mlp(), &sample, &options, |at| {
            told.lock().unwrap().push(at)
        })
        .unwrap();
        told.into_inner().unwrap()
    };
    let layers = |from, to| ProfileProgress::Layers { from, to, of: 5 };
    let begun = |told: &[ProfileProgress]| -> Vec<ProfileProgress> {
        let layers = told
            .iter()
            .filter(|at| matches!(at, ProfileProgress::Layers { .. }));
        layers.copied().collect()
    };
    let told = watched(false);
    assert_eq!(told[0], layers(0, 5));
    assert!(matches!(told[1], ProfileProgress::FirstRuns { left } if left >= 0.0));
    assert_eq!(told[2], ProfileProgress::WarmedUp);
    assert!(matches!(told[3], ProfileProgress::Round { rounds: 1, .. }));
    assert_eq!(begun(&told), [layers(0, 5)]);
    let one_by_one: Vec<ProfileProgress> = (0..5).map(|at| layers(at, at + 1)).collect();
    assert_eq!(begun(&watched(true)), one_by_one);
}
