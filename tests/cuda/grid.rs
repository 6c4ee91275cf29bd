//! On simulated devices, which compute with the CPU's kernels, each model here has the bits of one stage on
//! the CPU, over schedules, cuts, devices of both kinds and recomputation. Deviations are in [`EXCEPTIONS`],
//! with the reasons.
//!
//! The combinations are chosen so that each pair of values (a schedule and the devices, say) occurs in one of
//! them; `PARITY_EVERY=1` runs all.

use std::fmt;

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::{Device, Tensor};
use gpipe::{Pipeline, settings::Recompute};

use crate::harness::Test;
use crate::support::covering;
use crate::support::models::{self, Model};
use crate::support::reference::{Named, Numbers, pipeline_numbers};

/// Models whose numbers on the devices differ from the CPU's, with the reasons. A listed model whose numbers
/// are equal everywhere fails its test.
const EXCEPTIONS: [(&str, &str); 0] = [];

const MICRO_BATCHES: usize = 4;
/// Not a multiple of the micro-batches, so that their sizes differ.
const SAMPLES: i64 = 11;
const UPDATES: usize = 2;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("grid::mlp", || grid(&models::mlp())),
        ("grid::convolutions_with_batch_norm", || {
            grid(&models::convnet())
        }),
        ("grid::transformer", || grid(&models::transformer(0.0))),
        ("grid::transformer_with_dropout", || {
            grid(&models::transformer(0.1))
        }),
        ("grid::unet_with_skips", || grid(&models::unet())),
        ("grid::recurrent_cells", || grid(&models::recurrent())),
        ("grid::several_outputs", || grid(&models::multi_output())),
        ("grid::moving_buffers", || grid(&models::moving())),
        ("grid::tied_weights", || grid(&models::tied())),
    ]
}

/// Placement of the stages.
#[derive(Clone, Copy)]
enum Places {
    OneCard,
    OneCardEach,
    TwoACard,
    CpuBehindEach,
    CpuBeforeEach,
}

impl Places {
    const ALL: [Self; 5] = [
        Self::OneCard,
        Self::OneCardEach,
        Self::TwoACard,
        Self::CpuBehindEach,
        Self::CpuBeforeEach,
    ];

    fn device(self, number: usize) -> Device {
        match (self, number % 2) {
            (Self::OneCard, _) => Device::Cuda(0),
            (Self::OneCardEach, _) => Device::Cuda(number),
            (Self::TwoACard, _) | (Self::CpuBehindEach, 0) | (Self::CpuBeforeEach, 1) => {
                Device::Cuda(number / 2)
            }
            _ => Device::Cpu,
        }
    }
}

/// One combination.
struct Case {
    schedule: ScheduleKind,
    devices: Vec<Device>,
    recompute: Recompute,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schedule, devices) = (self.schedule, &self.devices);
        write!(f, "{schedule} on {devices:?}, recompute {}", self.recompute)
    }
}

impl Case {
    fn stages(&self) -> usize {
        self.devices.len() * self.schedule.default_chunks()
    }

    fn fits(&self, model: &Model) -> bool {
        let shape = Shape {
            devices: self.devices.len(),
            chunks: self.schedule.default_chunks(),
            micro_batches: MICRO_BATCHES,
        };
        self.stages() <= model.parts.len() && self.schedule.generate(shape).is_ok()
    }

    fn numbers(&self, model: &Model) -> Numbers {
        let (layers, stages) = (model.parts.len(), self.stages());
        let more = |stage: usize| usize::from(stage < layers % stages);
        let balance: Vec<_> = (0..stages)
            .map(|stage| layers / stages + more(stage))
            .collect();
        let mut pipe = Pipeline::builder(model.sequential())
            .devices(&self.devices)
            .balance(&balance)
            .micro_batches(MICRO_BATCHES)
            .schedule(self.schedule)
            .recompute(self.recompute.clone())
            .threads_per_stage(1)
            .seed(11)
            .build()
            .unwrap();
        let (x, y) = (model.batch)(SAMPLES);
        pipeline_numbers(&mut pipe, model, (&x, &y), UPDATES).unwrap()
    }
}

/// All combinations, each with its pairs of values.
fn cases(model: &Model) -> Vec<(Case, Vec<String>)> {
    let mut all = Vec::new();
    let train = |kind: &ScheduleKind| *kind != ScheduleKind::ForwardOnly;
    for schedule in ScheduleKind::ALL.into_iter().filter(train) {
        for count in 2..=4 {
            for (number, places) in Places::ALL.into_iter().enumerate() {
                for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
                    let axes = [
                        schedule.to_string(),
                        format!("p={count}"),
                        format!("places {number}"),
                        recompute.to_string(),
                    ];
                    let devices = (0..count).map(|number| places.device(number)).collect();
                    let case = Case {
                        schedule,
                        devices,
                        recompute,
                    };
                    if case.fits(model) {
                        all.push((case, covering::pairs(&axes)));
                    }
                }
            }
        }
    }
    all
}

fn grid(model: &Model) {
    crate::support::single_threaded();
    let one_stage = Case {
        schedule: ScheduleKind::GPipe,
        devices: vec![Device::Cpu],
        recompute: Recompute::Never,
    };
    let expected = one_stage.numbers(model);
    let all = cases(model);
    let named: Vec<_> = all
        .iter()
        .map(|(case, pairs)| (case.to_string(), pairs.clone()))
        .collect();
    let every = std::env::var_os("PARITY_EVERY").is_some();
    let chosen = covering::covering(&named);
    let exception = EXCEPTIONS.iter().find(|(name, _)| *name == model.name);
    let (mut run, mut differ) = (0, Vec::new());
    for (case, _) in all {
        if !every && !chosen.contains(&case.to_string()) {
            continue;
        }
        run += 1;
        let numbers = case.numbers(model);
        assert!(near(&numbers, &expected), "{}, {case}", model.name);
        if let Err(why) = same(&numbers, &expected) {
            differ.push(format!("{case}: {why}"));
        }
    }
    println!("{}: {run} combinations", model.name);
    assert!(run > 20, "{run}");
    match exception {
        None => assert!(differ.is_empty(), "{}", first(&differ, "\n")),
        Some((_, why)) => assert!(!differ.is_empty(), "the bits are the same, though {why}"),
    }
}

/// All numbers by name, in host memory.
fn listed(numbers: &Numbers) -> Named {
    let on_host = |(name, value): (String, &Tensor)| (name, value.to_device(Device::Cpu));
    let gradients = numbers.gradients.iter();
    let gradients = gradients.map(|(name, value)| (format!("gradient of {name}"), value));
    let after = numbers.after.iter();
    let after = after.map(|(name, value)| (format!("{name} after updates"), value));
    let input = numbers.input_gradient.iter();
    let input = input.map(|value| ("gradient of the input".to_owned(), value));
    let output = [("output".to_owned(), &numbers.output)];
    let losses = Tensor::from_slice(&numbers.losses);
    [("losses".to_owned(), losses)]
        .into_iter()
        .chain(
            output
                .into_iter()
                .chain(gradients)
                .chain(input)
                .chain(after)
                .map(on_host),
        )
        .collect()
}

/// The first few entries of a list, and the number of the others.
fn first(all: &[String], between: &str) -> String {
    let few = all.len().min(4);
    let more = match all.len() - few {
        0 => String::new(),
        more => format!("{between}and {more} more"),
    };
    all[..few].join(between) + &more
}

/// Compares bit for bit; the error names the differences.
fn same(own: &Numbers, expected: &Numbers) -> Result<(), String> {
    let (own, expected) = (listed(own), listed(expected));
    let names = |list: &Named| {
        list.iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&own), names(&expected));
    let pairs = own.iter().zip(&expected);
    let other = pairs.filter(|((_, own), (_, expected))| !own.equal(expected));
    let told = other.map(|((name, own), (_, expected))| {
        let most = (own - expected).abs().max().double_value(&[]);
        format!("{name} by {most:e}")
    });
    match told.collect::<Vec<_>>() {
        none if none.is_empty() => Ok(()),
        some => Err(first(&some, ", ")),
    }
}

/// Whether the loss and the gradients of the first step agree up to rounding.
fn near(own: &Numbers, expected: &Numbers) -> bool {
    let pairs = own.gradients.iter().zip(&expected.gradients);
    (own.losses[0] - expected.losses[0]).abs() < 1e-5
        && pairs.into_iter().all(|((_, own), (_, expected))| {
            let own = own.to_device(Device::Cpu);
            own.allclose(expected, 1e-4, 1e-6, false)
        })
}
