//! Does the prediction hold: profiles two models, plans, trains by the plan, and
//! prints predicted over measured for time and memory. See `benches/README.md`.

use gpipe::models::{Gpt, Mlp, gpt, mlp};
use gpipe::partitioner::{DeviceId, Machine, Plan, PlanOptions, Problem, ScheduleKind, plan};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{Pipeline, ProfileOptions, Profiled, Sample, Sequential, profile};

const SCHEDULES: [ScheduleKind; 3] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
];
const MICROS: [usize; 3] = [2, 4, 8];
/// Passes over all cases, one after the other, so that what disturbs disturbs all.
const ROUNDS: usize = 12;
const DEVICES: [Device; 2] = [Device::Cpu; 2];

struct Subject {
    name: &'static str,
    model: Sequential,
    input: Tensor,
    target: Tensor,
}

fn subjects(batch: i64) -> Vec<Subject> {
    let int = (Kind::Int64, Device::Cpu);
    let tokens = (Tensor::arange(batch * 64, int) * 7919)
        .remainder(96)
        .view([batch, 64]);
    vec![
        Subject {
            name: "mlp",
            model: mlp(Mlp {
                inputs: 784,
                hidden: 1024,
                depth: 8,
                outputs: 10,
            }),
            input: Tensor::rand([batch * 4, 784], (Kind::Float, Device::Cpu)),
            target: Tensor::arange(batch * 4, int).remainder(10),
        },
        Subject {
            name: "gpt",
            model: gpt(Gpt {
                vocab: 96,
                context: 64,
                d_model: 128,
                heads: 4,
                blocks: 6,
                dropout: 0.0,
            }),
            input: tokens.shallow_clone(),
            target: tokens,
        },
    ]
}

fn loss(out: &Tensor, y: &Tensor) -> Tensor {
    let classes = out.size().last().copied().unwrap_or(1);
    out.view([-1, classes])
        .cross_entropy_for_logits(&y.view([-1]))
}

/// A plan on its pipeline, and how long its steps took, in microseconds.
struct Case {
    plan: Plan,
    fixed: Vec<u64>,
    pipe: Pipeline,
    steps: Vec<f64>,
    peaks: Vec<u64>,
}

fn case(
    subject: &Subject,
    measured: &Profiled,
    kind: ScheduleKind,
    micros: usize,
) -> anyhow::Result<Case> {
    let mut machine = Machine::new(DEVICES.len())?;
    if let Some(link) = measured.link {
        machine = machine.with_link(link.link());
    }
    let mut options = PlanOptions::new(machine.clone());
    options.schedule = Some(kind);
    options.micro_batches = Some(micros);
    options.batch = Some(subject.input.size()[0] as usize);
    options.recompute = gpipe::partitioner::Recompute::Never;
    let plan = plan(&measured.profile, &options)?;
    let schedule = plan.generate()?;
    let size = plan.micro_batch_size;
    let costs = Problem::new(&measured.profile, size, &machine, &schedule)
        .stage_costs(&plan.partition, &plan.recompute);
    let fixed = |device: usize| {
        let stages = schedule.stages_on(DeviceId(device)).into_iter();
        stages
            .map(|stage| costs.memory(stage).fixed().get())
            .sum::<u64>()
    };
    let pipe = Pipeline::builder(subject.model.clone())
        .devices(&DEVICES)
        .measure_memory(true)
        .plan(&plan)?
        .build()?;
    Ok(Case {
        fixed: (0..DEVICES.len()).map(fixed).collect(),
        plan,
        pipe,
        steps: Vec::new(),
        peaks: vec![0; DEVICES.len()],
    })
}

impl Case {
    fn run(&mut self, subject: &Subject) -> anyhow::Result<()> {
        for warm in [true, false, false] {
            self.pipe.zero_grad()?;
            let report = self
                .pipe
                .train_step(&subject.input, &subject.target, loss)?;
            if warm {
                continue;
            }
            self.steps.push(report.timeline.makespan().get());
            let memory = report.memory.iter().flat_map(|memory| &memory.devices);
            for (peak, used) in self.peaks.iter_mut().zip(memory) {
                *peak = used.peak.get().max(*peak);
            }
        }
        Ok(())
    }

    fn print(&mut self, name: &str) {
        self.steps.sort_by(f64::total_cmp);
        let (best, median) = (self.steps[0], self.steps[self.steps.len() / 2]);
        let peak = |device: usize| {
            let paper = self.plan.peak_bytes[device].get() - self.fixed[device];
            paper as f64 / self.peaks[device].max(1) as f64
        };
        println!(
            "{name:4}  {:8}  {:>2}  {:>9}  {:>8.2} ms  {:>8.2} ms  {:>6.3}  {:>6.3}  {:>6.3}  {:>6.3}",
            self.plan.schedule.name(),
            self.plan.micro_batches,
            format!("{:?}", self.plan.partition.balance()),
            self.plan.step.get() / 1e3,
            median / 1e3,
            self.plan.step.get() / median,
            self.plan.step.get() / best,
            peak(0),
            peak(1),
        );
    }
}

fn measure(subject: &Subject, rounds: usize) -> anyhow::Result<()> {
    let batch = subject.input.size()[0];
    let largest = batch / MICROS[0] as i64;
    let sample = Sample::new(subject.input.narrow(0, 0, largest))
        .with_loss(subject.target.narrow(0, 0, largest), loss);
    let mut options = ProfileOptions::new(&DEVICES);
    options.sizes = MICROS.map(|micro| batch as usize / micro).to_vec();
    let measured = profile(&subject.model, &sample, &options)?;
    for doubt in &measured.doubts {
        println!("note: {doubt}");
    }
    let mut cases = Vec::new();
    for kind in SCHEDULES {
        for micros in MICROS {
            cases.push(case(subject, &measured, kind, micros)?);
        }
    }
    for _ in 0..rounds {
        for case in &mut cases {
            case.run(subject)?;
        }
    }
    cases.iter_mut().for_each(|case| case.print(subject.name));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let (batch, rounds) = if measured { (32, ROUNDS) } else { (8, 1) };
    println!(
        "{:4}  {:8}  {:>2}  {:>9}  {:>11}  {:>11}  {:>6}  {:>6}  peaks of activations\n\
         {:>53}  predicted over: median, best",
        "", "schedule", "m", "cut", "predicted", "median", "median", "best", ""
    );
    for subject in subjects(batch) {
        measure(&subject, rounds)?;
    }
    Ok(())
}
