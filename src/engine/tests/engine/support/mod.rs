//! Synthetic stages with exact arithmetic, an oracle for them, and a watchdog.

pub mod affine;
pub mod leafy;
pub mod oracle;
pub mod replicas;
pub mod rig;
pub mod world;

use gpipe_engine::{Engine, Entry, Program, StageBuilder, Topology};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId, ScheduleKind, Shape, StageId};
use std::io::Write as _;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

pub use affine::{Affine, Fault, Gate, Grads, How, Settings, When};
pub use oracle::oracle;

/// Fails the test instead of blocking if `f` does not end within a minute.
pub fn watched<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, finished) = channel();
    let thread = std::thread::spawn(move || {
        let result = f();
        // The receiver is only gone after the watchdog has already failed the test.
        let _ = done.send(());
        result
    });
    match finished.recv_timeout(Duration::from_mins(1)) {
        Err(RecvTimeoutError::Timeout) => panic!("the watchdog barked: no end after 60 s"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => thread
            .join()
            .unwrap_or_else(|payload| resume_unwind(payload)),
    }
}

/// A built-in schedule for p devices with one stage each and m micro-batches.
pub fn schedule(kind: ScheduleKind, p: usize, m: usize) -> CheckedSchedule {
    let shape = Shape {
        devices: p,
        chunks: 1,
        micro_batches: m,
    };
    kind.generate(shape).unwrap()
}

/// The same with the schedule's usual number of stages per device.
pub fn chunked(kind: ScheduleKind, p: usize, m: usize) -> CheckedSchedule {
    let shape = Shape::new(p, m).with_chunks(kind.default_chunks());
    kind.generate(shape).unwrap()
}

/// The same with an `R` before every `B` and `I`.
pub fn recomputing(schedule: &CheckedSchedule) -> CheckedSchedule {
    let plain = schedule.schedule().clone();
    plain.with_recomputes(|_, _| true).check().unwrap()
}

/// Writes a line even where the output of passing tests is captured.
pub fn say(line: &str) {
    // A closed standard output is no reason to fail.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// An engine of affine stages, placed as `schedule` says.
pub fn affine_engine(schedule: &CheckedSchedule, topology: &Arc<Topology>) -> Engine<Affine> {
    let devices = schedule.schedule().devices();
    let builder = |device| {
        let (stages, topology) = (schedule.stages_on(DeviceId(device)), Arc::clone(topology));
        let build = move || {
            let stage = |id: StageId| (id, Affine::new(id, Arc::clone(&topology)));
            Ok(stages.into_iter().map(stage).collect())
        };
        Box::new(build) as StageBuilder<Affine>
    };
    Engine::new((0..devices).map(builder).collect()).unwrap()
}

/// Returns the entries that the caller posts: a different number for every edge and micro-batch.
pub fn entries(program: &Program, seed: i64) -> Vec<Entry<i64>> {
    let micros = program.schedule().schedule().micro_batches();
    let edges = program.topology().outgoing(gpipe_engine::End::Caller);
    edges
        .flat_map(|(edge, _)| (0..micros).map(move |micro| (edge, MicroId(micro))))
        .map(|(edge, micro)| Entry {
            edge,
            micro,
            value: input(edge.index(), micro, seed),
        })
        .collect()
}

/// Returns the caller's value for an edge and micro-batch.
pub fn input(edge: usize, micro: MicroId, seed: i64) -> i64 {
    seed + 100 * edge as i64 + micro.index() as i64
}
