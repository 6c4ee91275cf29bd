//! Settings that do not fit: which one, and which rule it breaks.

use std::fmt;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Bytes, ScheduleKind};
use tch::Device;
use thiserror::Error;

/// A setting that cannot be, alone or beside the others.
///
/// It displays settings by the names of the methods that set them; [`SettingsError::named`]
/// tells the same in the caller's own names, those of flags, say.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}", self.named(&|setting| format!("`{}`", setting.name())))]
#[non_exhaustive]
pub struct SettingsError {
    /// What was set.
    pub setting: Setting,
    /// The rule that it breaks.
    pub rule: SettingsRule,
}

/// What can be set about a pipeline, and about its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Setting {
    /// The model: its layers, their names and skips.
    Model,
    /// The devices.
    Devices,
    /// Copies of the pipeline.
    Replicas,
    /// Whether replicas share the optimizer's state.
    ShardOptimizer,
    /// Steps that each replica does alone.
    LocalSteps,
    /// That steps in a row have no barrier between them.
    StepsInARow,
    /// How replicas that train alone are brought together.
    Outer,
    /// Micro-batches of a mini-batch.
    MicroBatches,
    /// Leaves of the tree in which gradients are summed.
    Tree,
    /// Stages of each device.
    Chunks,
    /// Layers of each stage.
    Balance,
    /// The schedule.
    Schedule,
    /// What is computed again rather than kept.
    Recompute,
    /// The type of numbers.
    Precision,
    /// Whose kernels compute on the CPU.
    Kernels,
    /// The loss scale of fp16.
    LossScale,
    /// Intra-op threads of a stage.
    ThreadsPerStage,
    /// For how long a stage is waited for.
    Patience,
    /// The most that CUDA devices may hold.
    MemoryLimits,
    /// Stages that keep activations in the host's memory.
    Offload,
    /// Whether passes are replayed as CUDA graphs.
    CudaGraphs,
    /// Whether only deterministic operators are used.
    Deterministic,
    /// Whether products are rounded to TF32.
    Tf32,
    /// Where initial values and random layers get their numbers from.
    Seed,
    /// What stands in for accelerators.
    Recorder,
    /// Parameters that are the same one.
    Ties,
    /// Values of parameters and buffers that are loaded.
    Weights,
    /// The optimizer's numbers.
    Optimizer,
    /// The learning rates.
    LearningRates,
    /// The largest norm of gradients.
    MaxNorm,
    /// The loss function.
    Loss,
    /// What a sample or a batch has.
    Batch,
    /// Sizes of micro-batches that a profile is made for.
    Sizes,
    /// The processes of a pipeline.
    World,
}

/// A rule that a setting breaks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SettingsRule {
    /// There is none of it, and at least one is needed.
    None,
    /// Two layers or parameters have one name.
    Duplicate {
        /// `layer` or `parameter`.
        what: &'static str,
        /// Their name.
        name: String,
    },
    /// It has not as many entries as there are stages, layers or devices.
    Count {
        /// Entries.
        given: usize,
        /// As many as there are to be.
        wanted: usize,
        /// What has one each.
        each: &'static str,
    },
    /// The balance is for another number of stages.
    Stages {
        /// Stages that it names.
        given: usize,
        /// How many there are.
        made: StageCount,
    },
    /// A schedule of one's own is for other numbers.
    OtherSchedule {
        /// Its name.
        schedule: String,
        /// Its devices.
        devices: usize,
        /// Its stages.
        stages: usize,
        /// Its micro-batches.
        micro_batches: usize,
        /// What was given of the setting.
        given: usize,
    },
    /// A tree cannot have so many leaves.
    Leaves {
        /// As many as were asked for.
        given: usize,
        /// The most that there can be.
        most: usize,
    },
    /// There cannot be so many replicas.
    Replicas {
        /// As many as were asked for.
        given: usize,
        /// Devices of all of them.
        devices: usize,
        /// Leaves of the tree that they share.
        leaves: usize,
    },
    /// There is no stage of this number.
    NoStage {
        /// The number.
        stage: usize,
        /// As many as there are.
        stages: usize,
    },
    /// It is for CUDA devices, and there is none.
    NoCudaDevice,
    /// A limit of memory for a CPU.
    LimitOfCpu {
        /// Its place in the list of devices.
        place: usize,
        /// The limit.
        limit: Bytes,
    },
    /// A device that is named several times has a limit of memory and has none.
    LimitedAndNot {
        /// The device.
        device: Device,
    },
    /// The machine, or libtorch, does not have it: why.
    Unavailable(String),
    /// Anything else, in words.
    Invalid(String),
}

/// How the number of stages comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageCount {
    /// Devices.
    pub devices: usize,
    /// Stages of each.
    pub chunks: usize,
    /// The schedule, where it decides the chunks.
    pub by: Option<ScheduleKind>,
}

impl StageCount {
    /// So many devices of so many chunks, which a schedule may have decided.
    pub fn new(devices: usize, chunks: usize, by: Option<ScheduleKind>) -> Self {
        Self {
            devices,
            chunks,
            by,
        }
    }

    /// Devices times chunks.
    pub fn stages(&self) -> usize {
        self.devices.saturating_mul(self.chunks)
    }

    /// The same in words, with the settings' names.
    pub fn named(&self, name: &dyn Fn(Setting) -> String) -> String {
        let (devices, chunks, stages) = (self.devices, self.chunks, self.stages());
        match self.by {
            _ if chunks == 1 => format!(
                "{} makes {stages}",
                name(Setting::Devices),
                stages = count(stages, "stage")
            ),
            None => {
                let own = name(Setting::Chunks);
                format!(
                    "{devices} with {own} {chunks} make {stages}",
                    stages = count(stages, "stage"),
                    devices = count(devices, "device")
                )
            }
            Some(schedule) => format!(
                "{devices} with {chunks} chunks each ({} {schedule}) make {stages}",
                name(Setting::Schedule),
                stages = count(stages, "stage"),
                devices = count(devices, "device")
            ),
        }
    }
}

impl Setting {
    /// The method that sets it, of [`PipelineBuilder`](crate::PipelineBuilder) where it is
    /// about a pipeline.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Devices => "devices",
            Self::Replicas => "replicas",
            Self::ShardOptimizer => "shard_optimizer",
            Self::LocalSteps => "local_steps",
            Self::StepsInARow => "StepsInARow::required",
            Self::Outer => "outer",
            Self::MicroBatches => "micro_batches",
            Self::Tree => "tree",
            Self::Chunks => "chunks",
            Self::Balance => "balance",
            Self::Schedule => "schedule",
            Self::Recompute => "recompute",
            Self::Precision => "precision",
            Self::Kernels => "kernels",
            Self::LossScale => "loss_scale",
            Self::ThreadsPerStage => "threads_per_stage",
            Self::Patience => "patience",
            Self::MemoryLimits => "memory_limits",
            Self::Offload => "offload",
            Self::CudaGraphs => "cuda_graphs",
            Self::Deterministic => "deterministic",
            Self::Tf32 => "tf32",
            Self::Seed => "seed",
            Self::Recorder => "record_streams",
            Self::Ties => "tie",
            Self::Weights => "load",
            Self::Optimizer => "optimizer",
            Self::LearningRates => "lr_schedule",
            Self::MaxNorm => "max_norm",
            Self::Loss => "loss",
            Self::Batch => "batch",
            Self::Sizes => "sizes",
            Self::World => "world",
        }
    }

    /// What it is to have at least one of.
    const fn none(self) -> &'static str {
        match self {
            Self::Model => "the model has no layers",
            Self::Devices => "no devices: at least one is needed",
            Self::Replicas => "0 replicas: one pipeline is 1",
            Self::MicroBatches => "0 micro-batches: a mini-batch is at least one",
            Self::Chunks => "0 chunks: a device has at least one stage",
            Self::ThreadsPerStage => "0 threads per stage: a stage needs at least one",
            Self::Patience => "a patience of 0: every action takes some time",
            Self::LossScale => "the loss scale's growth interval is 0: it is at least 1 step",
            _ => "there is none of it, and at least one is needed",
        }
    }
}

impl SettingsError {
    pub(crate) fn new(setting: Setting, rule: SettingsRule) -> Self {
        Self { setting, rule }
    }

    pub(crate) fn invalid(setting: Setting, why: impl Into<String>) -> Self {
        Self::new(setting, SettingsRule::Invalid(why.into()))
    }

    pub(crate) fn unavailable(setting: Setting, why: &impl fmt::Display) -> Self {
        Self::new(setting, SettingsRule::Unavailable(why.to_string()))
    }

    /// The error in words, with the settings' names as the caller has them: `--memory` for
    /// [`Setting::MemoryLimits`], say.
    pub fn named(&self, name: &dyn Fn(Setting) -> String) -> String {
        let own = || name(self.setting);
        match &self.rule {
            SettingsRule::None => self.setting.none().to_owned(),
            SettingsRule::Duplicate {
                what: "layer",
                name,
            } => {
                format!("two layers are named `{name}`: names must be unique")
            }
            SettingsRule::Duplicate { what, name } => {
                format!("two {what}s are named `{name}`: give one of their layers another name")
            }
            SettingsRule::Count {
                given,
                wanted,
                each: "device",
            } => format!(
                "{} has {given}, but {} names {wanted}: give one for all, or one for each",
                own(),
                name(Setting::Devices),
                given = count(*given, "value")
            ),
            SettingsRule::Count {
                given,
                wanted,
                each,
            } => format!(
                "{} has {given} entries, and there {are} {}: give one for each {each}",
                own(),
                count(*wanted, each),
                are = if *wanted == 1 { "is" } else { "are" },
            ),
            SettingsRule::Stages { given, made } => format!(
                "{} names {given}, but {}: give one number for each stage",
                own(),
                made.named(name),
                given = count(*given, "stage")
            ),
            SettingsRule::OtherSchedule { .. } => self.other_schedule(),
            SettingsRule::Leaves { given, most } => format!(
                "{} is {given}, but a tree of gradient sums has a power of two of leaves: give it \
                 1, 2, 4 or another one, at most {most}",
                own()
            ),
            SettingsRule::Replicas { .. } => self.replicas(name),
            SettingsRule::NoStage { stage, stages } => format!(
                "{} names stage {stage}, but there are {stages}, numbered from 0",
                own()
            ),
            SettingsRule::NoCudaDevice => format!(
                "{} limits what CUDA devices may hold, and {} has none: the CPU's memory is the \
                 system's to limit (`ulimit -v`, a container)",
                own(),
                name(Setting::Devices)
            ),
            SettingsRule::LimitOfCpu { place, limit } => format!(
                "{} gives {} to device {place}, which is a CPU: its memory is the system's to \
                 limit, so say `none` there",
                own(),
                in_whole_units(*limit)
            ),
            SettingsRule::LimitedAndNot { device } => format!(
                "{device:?} is named several times, with a memory limit and without: give each \
                 entry one, or none"
            ),
            SettingsRule::Unavailable(why) | SettingsRule::Invalid(why) => why.clone(),
        }
    }

    fn replicas(&self, name: &dyn Fn(Setting) -> String) -> String {
        let SettingsRule::Replicas {
            given,
            devices,
            leaves,
        } = &self.rule
        else {
            return String::new();
        };
        let own = name(self.setting);
        if !given.is_power_of_two() {
            return format!(
                "{own} is {given}, but replicas share a tree of gradient sums, so there is a power \
                 of two of them: give it 1, 2, 4 or another one"
            );
        }
        if !devices.is_multiple_of(*given) {
            return format!(
                "{devices} cannot be shared evenly by {given} replicas ({own}): give {} a \
                 multiple of {given}",
                name(Setting::Devices),
                devices = count(*devices, "device")
            );
        }
        format!(
            "{own} is {given}, but {} is {leaves}, and each replica has at least one leaf of the \
             tree of gradient sums: give the tree {given} leaves or more (one pipeline with as \
             many leaves has the same numbers)",
            name(Setting::Tree)
        )
    }

    fn other_schedule(&self) -> String {
        let SettingsRule::OtherSchedule {
            schedule,
            devices,
            stages,
            micro_batches,
            given,
        } = &self.rule
        else {
            return String::new();
        };
        let different = match self.setting {
            Setting::MicroBatches => format!(
                "is for {micro_batches}, not {given}",
                micro_batches = count(*micro_batches, "micro-batch")
            ),
            Setting::Devices => format!(
                "is for {devices}, but there are {given}",
                devices = count(*devices, "device")
            ),
            Setting::Chunks => format!(
                "has {stages} on {devices}, which is not {given} each",
                stages = count(*stages, "stage"),
                devices = count(*devices, "device"),
                given = count(*given, "chunk")
            ),
            Setting::Batch => format!(
                "is for {micro_batches} micro-batches, but the batch has only {given}: \
                 give it at least {micro_batches}",
                given = count(*given, "sample")
            ),
            _ => format!(
                "has {stages}, which {devices} cannot share evenly",
                stages = count(*stages, "stage"),
                devices = count(*devices, "device")
            ),
        };
        format!("the schedule `{schedule}` {different}")
    }
}

/// Reads back as the same: in the largest unit of which it is a whole number.
pub(crate) fn in_whole_units(Bytes(bytes): Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = |(_, power): &(&str, u32)| bytes.is_multiple_of(1 << power);
    match units.into_iter().find(whole) {
        Some((unit, power)) => format!("{}{unit}", bytes >> power),
        None => format!("{bytes}B"),
    }
}
