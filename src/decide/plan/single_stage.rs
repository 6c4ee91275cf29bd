//! Whether one device, or one stage with the cores of several, would be at least as fast.

use gpipe_partitioner::{Device, Machine, Micros, Plan, PlanOptions, Profile, ScheduleKind, plan};

/// Notes that one device is predicted to be faster than the several of a plan, if so: stages with
/// little work wait for each other longer than they save.
pub(super) fn note(profile: &Profile, several: &Plan, options: &PlanOptions) -> Option<String> {
    let devices = several.devices() * several.replicas;
    if devices <= 1 {
        return None;
    }
    let one = plan(profile, &one_device(several, options)?).ok()?;
    (one.step < several.step).then(|| {
        format!(
            "note: one device alone is predicted to take {} a step, in micro-batches of {}, and \
             this plan over {devices} takes {}: more devices make it slower here",
            one.step, one.micro_batch_size, several.step
        )
    })
}

/// One stage instead of a pipeline.
pub(crate) struct OneStage {
    pub(crate) profile: Profile,
    pub(crate) options: PlanOptions,
    pub(crate) plan: Plan,
    /// Whether it is predicted to be faster than the best pipeline.
    pub(crate) wins: bool,
    pub(crate) note: String,
}

/// In shorter steps, the time between actions, which no profile of layers has, is a large part.
const SHORT_US: f64 = 10_000.0;

/// Plans one stage with all the cores that CPU devices share, if the profile has layer times for that;
/// none if a schedule, chunks or several processes are asked for.
pub(crate) fn on_all_cores(
    profile: &Profile,
    several: &Plan,
    options: &PlanOptions,
) -> Option<OneStage> {
    let cores = profile.all_cores()?;
    let shared = options.machine.cores()?.cores();
    let is_free = options.schedule.is_none() && options.chunks.is_none();
    let is_free = is_free && options.machine.processes() == 1;
    if several.devices() <= 1 || shared != cores || !is_free {
        return None;
    }
    let profile = profile.on_all_cores()?;
    let mut own = one_device(several, options)?;
    own.micro_batches = options.micro_batches;
    let one = plan(&profile, &own).ok()?;
    let wins = one.step < several.step;
    let choice = if wins {
        "the plan is the former (--chunks 1 asks for a pipeline)"
    } else {
        "the plan is the latter"
    };
    // Upper bound of the time that one core takes.
    let work = several.step * several.devices() as f64;
    let short = if is_disturbed(one.step, work) {
        "; the machine was busy, and these times are unreliable: measure again when it is idle"
    } else if !wins && several.step.get() < SHORT_US {
        "; steps as short as these take longer than predicted, those of several devices most: measure both \
         (`train --devices cpu --micro 1` is one stage)"
    } else {
        ""
    };
    let note = format!(
        "note: one stage with all {cores} cores is predicted to take {} a step, the best pipeline \
         over {} devices {}: {choice}{short}",
        one.step,
        several.devices(),
        several.step
    );
    Some(OneStage {
        profile,
        options: own,
        plan: one,
        wins,
        note,
    })
}

/// Whether all cores took longer for a step than one core takes for its whole `work`, by more than the
/// cost of sharing it among them.
fn is_disturbed(step: Micros, work: Micros) -> bool {
    const SHARING: f64 = 1.5;
    step.get() > SHARING * work.get()
}

/// Returns options for the same mini-batch on the fastest device.
fn one_device(several: &Plan, options: &PlanOptions) -> Option<PlanOptions> {
    let devices = options.machine.devices().iter();
    let fastest = devices.max_by(|a: &&Device, b: &&Device| a.speed.total_cmp(&b.speed))?;
    let mut machine = Machine::new(1).ok()?.with_speeds(&[fastest.speed]).ok()?;
    if let Some(memory) = fastest.memory {
        machine = machine.with_memory(&[memory]).ok()?;
    }
    if let Some(link) = options.machine.host_link() {
        machine = machine.with_host_link(link);
    }
    let mut own = options.clone();
    own.machine = machine;
    let planned = several.micro_batch_size * several.micro_batches;
    own.batch = Some(options.batch.unwrap_or(planned));
    own.micro_batches = None;
    own.chunks = Some(1);
    own.schedule = Some(ScheduleKind::OneFOneB);
    if several.shard_optimizer {
        own.optimizer_state *= several.replicas as f64;
    }
    Some(own)
}
