//! Whether one device alone would be as well.

use gpipe_partitioner::{Device, Machine, Plan, PlanOptions, Profile, ScheduleKind, plan};

/// That one device is predicted to be faster than the several of a plan, where it is: stages of
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

/// The same mini-batch on the fastest of the devices.
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
