//! Combinations of settings.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::{
    Pipeline, PipelineBuilder,
    settings::{Kernels, Recompute},
};

use crate::support::models::Model;
use crate::support::{covering, cpus};

const DEVICES: [usize; 4] = [1, 2, 3, 4];
/// With this many micro-batches, every other stage or layer recomputes as well.
const MIXED: usize = 4;

thread_local! {
    /// Kernels of the suite that runs on this thread.
    pub(crate) static KERNELS: Cell<Kernels> = const { Cell::new(Kernels::Libtorch) };
}

/// Runs a suite with these kernels, including its own computations.
pub(crate) fn with_kernels(kernels: Kernels, suite: impl FnOnce()) {
    let before = KERNELS.replace(kernels);
    let scope = kernels.scope().unwrap();
    suite();
    drop(scope);
    KERNELS.set(before);
}

/// One combination.
pub(crate) struct Case {
    pub(crate) schedule: ScheduleKind,
    pub(crate) devices: usize,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) recompute: Recompute,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} p={} v={} m={} recompute {}",
            self.schedule, self.devices, self.chunks, self.micro_batches, self.recompute
        )
    }
}

impl Case {
    /// One stage, without recomputation.
    pub(crate) fn simplest(micro_batches: usize) -> Self {
        Self {
            schedule: ScheduleKind::GPipe,
            devices: 1,
            chunks: 1,
            micro_batches,
            recompute: Recompute::Never,
        }
    }

    /// Each pair of its values on different axes.
    pub(crate) fn pairs(&self) -> Vec<String> {
        covering::pairs(&self.axes())
    }

    /// Its values by axis.
    pub(crate) fn axes(&self) -> [String; 4] {
        [
            format!("{} v={}", self.schedule, self.chunks),
            format!("p={}", self.devices),
            format!("m={}", self.micro_batches),
            self.recompute.to_string(),
        ]
    }

    pub(crate) fn exists(&self) -> bool {
        let shape = Shape {
            devices: self.devices,
            chunks: self.chunks,
            micro_batches: self.micro_batches,
        };
        self.schedule.generate(shape).is_ok()
    }

    pub(crate) fn pipeline(&self, model: &Model) -> Result<Pipeline, gpipe::Error> {
        self.builder(model).devices(&cpus(self.devices)).build()
    }

    /// All settings but the devices.
    pub(crate) fn builder(&self, model: &Model) -> PipelineBuilder {
        let stages = self.devices * self.chunks;
        Pipeline::builder(model.sequential())
            .chunks(self.chunks)
            .recompute(self.recompute.clone())
            .balance(&balance(model.parts.len(), stages, self.micro_batches))
            .micro_batches(self.micro_batches)
            .schedule(self.schedule)
            .threads_per_stage(1)
            .kernels(KERNELS.get())
            .seed(11)
    }
}

/// Layers per stage; `turn` rotates the stages with an extra one.
fn balance(layers: usize, stages: usize, turn: usize) -> Vec<usize> {
    let more = |stage: usize| usize::from((stage + turn) % stages < layers % stages);
    (0..stages)
        .map(|stage| layers / stages + more(stage))
        .collect()
}

/// The chunks tested with a schedule.
fn chunks(schedule: ScheduleKind) -> Vec<usize> {
    match schedule {
        ScheduleKind::Interleaved1F1B | ScheduleKind::LoopedBfs | ScheduleKind::InterleavedZb => {
            vec![2, 3]
        }
        _ => vec![schedule.default_chunks()],
    }
}

/// All combinations for a model of `layers` layers and one number of micro-batches.
pub(crate) fn cases(layers: usize, micro_batches: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for schedule in ScheduleKind::ALL {
        if schedule == ScheduleKind::ForwardOnly {
            continue;
        }
        for chunks in chunks(schedule) {
            for devices in DEVICES {
                for recompute in recomputes(layers, devices * chunks, micro_batches) {
                    cases.push(Case {
                        schedule,
                        devices,
                        chunks,
                        micro_batches,
                        recompute,
                    });
                }
            }
        }
    }
    cases.retain(|case| case.devices * case.chunks <= layers);
    cases
}

/// Names of a few combinations that cover each possible pair of values on different axes.
pub(crate) fn covering(cases: impl Iterator<Item = Case>) -> HashSet<String> {
    let named: Vec<_> = cases.map(|case| (case.to_string(), case.pairs())).collect();
    covering::covering(&named)
}

fn recomputes(layers: usize, stages: usize, micro_batches: usize) -> Vec<Recompute> {
    let every_other = |count| (0..count).map(|number| number % 2 == 1).collect();
    let mut all = vec![Recompute::Never, Recompute::ExceptLast, Recompute::Always];
    if micro_batches == MIXED {
        all.push(if stages.is_multiple_of(2) {
            Recompute::Stages(every_other(stages))
        } else {
            Recompute::Layers(every_other(layers))
        });
    }
    all
}
