//! Models to profile, plan and train, and pipelines that collect the measurements.
#![allow(dead_code)]

use gpipe::models::zoo::{ModelSpec, Zoo};
use gpipe::partitioner::{Costs, Machine, Plan, PlanOptions, Problem, ScheduleKind, When, plan};
use gpipe::tch::Device;
use gpipe::{
    Optimizer, Pipeline, Values,
    optim::AdamW,
    profile::{ProfileOptions, Profiled, Sample, profile},
    report::StepReport,
};

/// Model, sizes, and samples per mini-batch.
pub(crate) const SUBJECTS: [(&str, &[&str], usize); 5] = [
    ("mlp", &["hidden=1024", "depth=8"], 256),
    (
        "gpt",
        &["layers=6", "d_model=128", "context=64", "vocab=96"],
        32,
    ),
    (
        "vgg16",
        &["image=32", "width=16", "hidden=512", "classes=10"],
        64,
    ),
    (
        "unet",
        &["image=64", "depth=3", "convolutions=2", "width=16"],
        16,
    ),
    (
        "lstm",
        &["layers=4", "hidden=192", "context=24", "vocab=96"],
        64,
    ),
];

/// A model with a mini-batch for it.
pub(crate) struct Subject {
    pub(crate) spec: ModelSpec,
    pub(crate) batch: usize,
    pub(crate) input: Values,
    pub(crate) target: Values,
}

impl Subject {
    pub(crate) fn new(name: &str, sizes: &[&str], batch: usize) -> anyhow::Result<Self> {
        let spec = Zoo::builtin().spec(name, sizes)?;
        let (input, target) = spec.sample(batch, 0)?;
        Ok(Self {
            spec,
            batch,
            input,
            target,
        })
    }

    /// Profiles the model for `stages` CPU stages at the micro-batch sizes that these counts give.
    pub(crate) fn profile(&self, stages: usize, micros: &[usize]) -> anyhow::Result<Profiled> {
        let mut options = ProfileOptions::new(&vec![Device::Cpu; stages]);
        options.sizes = micros
            .iter()
            .map(|micro| self.batch.div_ceil(*micro))
            .collect();
        let largest = options.sizes.iter().copied().max().unwrap_or(1);
        let (input, target) = self.spec.sample(largest, 0)?;
        let sample = Sample::new(input).with_loss(target, self.spec.loss());
        let measured = profile(&self.spec.build(), &sample, &options)?;
        for doubt in &measured.doubts {
            println!("note: {}: {doubt}", self.spec.name());
        }
        Ok(measured)
    }

    /// The plan for `stages` devices, without recomputation.
    pub(crate) fn plan(
        &self,
        measured: &Profiled,
        stages: usize,
        schedule: ScheduleKind,
        micros: usize,
    ) -> anyhow::Result<Plan> {
        let mut options = PlanOptions::new(machine(measured, stages)?);
        options.schedule = Some(schedule);
        options.micro_batches = Some(micros);
        options.batch = Some(self.batch);
        options.recompute = When::Never;
        Ok(plan(&measured.profile, &options)?)
    }
}

fn machine(measured: &Profiled, stages: usize) -> anyhow::Result<Machine> {
    let mut machine = Machine::new(stages)?;
    if let Some(cores) = measured.cores {
        machine = machine.with_cores(cores);
    }
    Ok(match measured.link {
        Some(link) => machine.with_link(link.link()),
        None => machine,
    })
}

/// Stage costs of a plan according to a profile.
pub(crate) fn stage_costs(
    plan: &Plan,
    measured: &Profiled,
    stages: usize,
) -> anyhow::Result<Costs> {
    let (machine, schedule) = (machine(measured, stages)?, plan.generate()?);
    let size = plan.micro_batch_size;
    let problem = Problem::new(&measured.profile, size, &machine, &schedule);
    Ok(problem.stage_costs(&plan.partition, &plan.recompute, &plan.offload))
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A pipeline that trains one subject, and its step times.
pub(crate) struct Runner {
    pub(crate) pipe: Pipeline,
    optimizer: Optimizer,
    pub(crate) measured: Measured,
}

/// Measurements of steps.
#[derive(Default)]
pub(crate) struct Measured {
    /// Makespans in microseconds.
    pub(crate) steps: Vec<f64>,
    /// Peak memory of each step, per device.
    peaks: Vec<Vec<u64>>,
}

impl Measured {
    pub(crate) fn add(&mut self, more: Self) {
        self.steps.extend(more.steps);
        self.peaks.extend(more.peaks);
    }

    fn count(&mut self, report: &StepReport) {
        let numbers = report.read().expect("stages on the CPU have their numbers");
        self.steps.push(numbers.timeline.makespan().get());
        let memory = report.memory.iter().flat_map(|memory| &memory.devices);
        self.peaks
            .push(memory.map(|used| used.total.get()).collect());
    }

    /// Median peak of total memory, per device.
    pub(crate) fn peaks(&self, devices: usize) -> Vec<u64> {
        let middle = |device: usize| {
            let mut sorted: Vec<u64> = self.peaks.iter().map(|step| step[device]).collect();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        (0..devices).map(middle).collect()
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.steps)
    }
}

impl Runner {
    pub(crate) fn new(pipe: Pipeline) -> Self {
        Self {
            pipe,
            // A model that has memorized its only batch has denormal gradients, which a CPU computes five
            // times as slowly.
            optimizer: Optimizer::new(AdamW {
                lr: 1e-9,
                ..AdamW::default()
            }),
            measured: Measured::default(),
        }
    }

    /// Trains one warm-up step and then `steps` measured ones.
    pub(crate) fn run(&mut self, subject: &Subject, steps: usize) -> anyhow::Result<()> {
        for number in 0..=steps {
            let report = self.pipe.train_step(
                subject.input.shallow_clone(),
                subject.target.shallow_clone(),
                subject.spec.loss(),
            )?;
            self.optimizer.step(&mut self.pipe)?;
            if number > 0 {
                self.measured.count(&report);
            }
        }
        Ok(())
    }
}
