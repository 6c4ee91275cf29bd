//! Costs that grow with the number of processes.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Instant;

use gpipe::engine::{Program, Topology};
use gpipe::partitioner::{DeviceId, ScheduleKind};
use gpipe::world::World;
use serde::Deserialize;
use serde_json::json;

use super::answer;

/// A pipeline of one stage a device.
#[derive(Deserialize)]
pub struct Shape {
    devices: usize,
    micro_batches: usize,
}

/// Reads a line of `/proc/self/status`, in MiB.
fn status(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    number.unwrap_or_default() / 1024.0
}

/// Joins, creates one group, and stays until standard input ends.
pub fn join() -> anyhow::Result<()> {
    let begin = Instant::now();
    let world = Arc::new(World::from_env()?);
    let met = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let group = world.group()?;
    let connected = begin.elapsed().as_secs_f64();
    answer(&json!({
        "rank": world.rank(),
        "met_ms": met * 1e3,
        "group_ms": connected * 1e3,
        "files": std::fs::read_dir("/proc/self/fd")?.count(),
        "rss_mb": status("VmRSS"),
    }))?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    drop(group);
    if let Some(world) = Arc::into_inner(world) {
        world.leave()?;
    }
    Ok(())
}

/// Builds the program of the middle device, with the schedule kept and dropped.
pub fn program(shape: &Shape) -> anyhow::Result<()> {
    let own = DeviceId(shape.devices / 2);
    let made = gpipe::partitioner::Shape::new(shape.devices, shape.micro_batches);
    let before = status("VmRSS");
    let begin = Instant::now();
    let schedule = ScheduleKind::OneFOneB.generate(made)?;
    let (checked, with_schedule) = (begin.elapsed().as_secs_f64(), status("VmRSS") - before);
    let begin = Instant::now();
    let topology = Topology::chain(shape.devices);
    let program = Program::part(schedule, &topology, |device| device == own)?;
    let compiled = begin.elapsed().as_secs_f64();
    let kept = status("VmRSS") - before;
    let program = program.without_schedules(move |_| {
        let again = ScheduleKind::OneFOneB.generate(made);
        again.expect("it was made before")
    });
    let let_go = status("VmRSS") - before;
    answer(&json!({
        "devices": shape.devices,
        "micro_batches": shape.micro_batches,
        "schedule_s": checked,
        "schedule_mb": with_schedule,
        "program_s": compiled,
        "kept_mb": kept,
        "let_go_mb": let_go,
        "most_mb": status("VmHWM") - before,
        "arrivals": program.arrivals(own).count(),
    }))
}
