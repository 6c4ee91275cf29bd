//! Error messages of broken rules.

use gpipe_partitioner::words::count;

use super::{Setting, SettingsError, SettingsRule, in_whole_units};

impl SettingsError {
    /// Formats the error with the caller's names for the settings, such as `--memory` for
    /// [`Setting::MemoryLimits`].
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
             tree of gradient sums: give {} {given} leaves or more (one pipeline with as many leaves \
             has the same numbers)",
            name(Setting::Tree),
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
