//! A worker's thread dies although nothing should be able to kill it.

use super::device_stages::DeviceStages;
use super::message::Job;
use super::{Engine, EngineError, Stage, StageBuilder};
use gpipe_partitioner::{Action, DeviceId, StageId};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Sends a signal when it is dropped.
struct DropSignal(Sender<()>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        // The test may already be over.
        let _ = self.0.send(());
    }
}

struct Silent(#[allow(dead_code)] DropSignal);

impl Stage for Silent {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, _: Action, inputs: Vec<()>) -> anyhow::Result<Vec<()>> {
        Ok(inputs)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

fn engine(devices: usize) -> (Engine<Silent>, Receiver<()>) {
    let (sender, dropped) = channel();
    let builder = |device| {
        let sender = sender.clone();
        let build = move || Ok(vec![(StageId(device), Silent(DropSignal(sender)))]);
        Box::new(build) as StageBuilder<Silent>
    };
    (
        Engine::new((0..devices).map(builder).collect()).unwrap(),
        dropped,
    )
}

/// Kills the thread of `device` from within, past every catch of panics.
fn kill(engine: &mut Engine<Silent>, device: usize) -> EngineError {
    fn die(_: &mut DeviceStages<Silent>) {
        // `resume_unwind` prints nothing, unlike `panic!`.
        std::panic::resume_unwind(Box::new("killed"))
    }
    let job: Job<Silent> = Box::new(die);
    engine.run_jobs(vec![(DeviceId(device), job)]).unwrap_err()
}

#[test]
fn a_lost_thread_is_an_error_and_the_others_are_joined() {
    let (mut engine, dropped) = engine(3);
    let error = kill(&mut engine, 1);
    assert!(matches!(
        error,
        EngineError::WorkerLost {
            device: DeviceId(1)
        }
    ));
    let error = engine.on_each(|_, _| Ok(())).unwrap_err();
    assert!(matches!(error, EngineError::Broken));
    drop(engine);
    for _ in 0..3 {
        dropped.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}
