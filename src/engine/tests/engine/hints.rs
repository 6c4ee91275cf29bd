//! Hints about activations that a stage gets before an action: the device's next use of them, and
//! the treatment of a forward's activations.

use crate::support::{chunked, recomputing, watched};
use gpipe_engine::{ActivationHint, EdgeId, Engine, Entry, Program, Stage, StageBuilder, Topology};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, ScheduleKind, StageId,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// An action with the hints before it: use of activations by the next action, recompute of its own,
/// and a second hint that its activations stay.
type Heard = ([Option<ActivationHint>; 3], Action);
/// Actions and hints of each device's stages.
type Told = Arc<Mutex<Vec<Vec<Heard>>>>;

struct Listener {
    device: usize,
    id: StageId,
    last: bool,
    told: Told,
    hints: Arc<Mutex<[Option<ActivationHint>; 3]>>,
}

impl Stage for Listener {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn activation_hint(&mut self, hint: ActivationHint) -> anyhow::Result<()> {
        assert_eq!(hint.consumer().stage, self.id, "a hint for another stage");
        let place = match hint {
            ActivationHint::Recompute(_) => 1,
            ActivationHint::Keep(_) if self.hints.lock()[0].is_some() => 2,
            _ => 0,
        };
        let before = self.hints.lock()[place].replace(hint);
        assert_eq!(before, None, "two hints of a kind at once");
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<()>) -> anyhow::Result<Vec<()>> {
        let hints = std::mem::take(&mut *self.hints.lock());
        self.told.lock()[self.device].push((hints, action));
        match action.kind {
            ActionKind::Backward | ActionKind::BackwardInput if self.last => Ok(vec![()]),
            _ => Ok(inputs),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

fn told(schedule: &CheckedSchedule) -> Vec<Vec<Heard>> {
    let plain = schedule.schedule();
    let (devices, stages) = (plain.devices(), plain.stages());
    let told = Told::new(Mutex::new(vec![Vec::new(); devices]));
    let builder = |device: usize| {
        let (told, ids) = (Arc::clone(&told), schedule.stages_on(DeviceId(device)));
        let build = move || {
            let hints = Arc::default();
            let stage = |id: StageId| {
                let stage = Listener {
                    device,
                    id,
                    last: id.index() + 1 == stages,
                    told: Arc::clone(&told),
                    hints: Arc::clone(&hints),
                };
                (id, stage)
            };
            Ok(ids.into_iter().map(stage).collect())
        };
        Box::new(build) as StageBuilder<Listener>
    };
    let mut engine = Engine::new((0..devices).map(builder).collect()).unwrap();
    let program = Arc::new(Program::new(schedule.clone(), &Topology::chain(stages)).unwrap());
    let entry = |micro| Entry {
        edge: EdgeId(0),
        micro: MicroId(micro),
        value: (),
    };
    let entries = (0..plain.micro_batches()).map(entry).collect();
    engine.step(&program, Arc::new(()), entries).unwrap();
    drop(engine);
    std::mem::take(&mut *told.lock())
}

/// A hint comes exactly where the next action consumes activations. Forwards with a `Keep` are
/// those whose activations stay on the device in a simulation of the same schedule.
#[test]
fn hints_are_those_of_the_schedule_and_agree_with_the_simulator() {
    watched(|| {
        let (mut kept, mut prefetched) = (0, 0);
        for kind in ScheduleKind::ALL {
            let plain = chunked(kind, 3, 6);
            let redone = plain.is_training().then(|| recomputing(&plain));
            for schedule in std::iter::once(plain).chain(redone) {
                for (device, list) in told(&schedule).iter().enumerate() {
                    let name = schedule.schedule().name();
                    let moves = schedule.schedule().offload_moves(DeviceId(device));
                    for (at, &([hint, own, more], action)) in list.iter().enumerate() {
                        let again = action.with(ActionKind::Recompute);
                        let redone = list.iter().any(|&(_, other)| other == again);
                        let drops = action.kind == ActionKind::Forward && redone;
                        let expected = drops.then_some(ActivationHint::Recompute(again));
                        assert_eq!((own, more), (expected, None), "{name}: {action}");
                        let next = list.get(at + 1).map(|(_, next)| *next);
                        let next = next.filter(|next| next.kind.consumes_activations());
                        assert_eq!(hint.map(ActivationHint::consumer), next, "{name}: {action}");
                        let of = (action.stage, action.micro);
                        let stays = moves.iter().all(|moved| moved.released != Some(of));
                        let keeps = matches!(hint, Some(ActivationHint::Keep(_)));
                        if schedule.is_training() && action.kind == ActionKind::Forward {
                            assert_eq!(keeps, stays, "{name}: {action}");
                        } else {
                            assert!(!keeps, "{name}: {action}");
                        }
                        kept += usize::from(keeps);
                        prefetched += usize::from(hint.is_some() && !keeps);
                    }
                }
            }
        }
        assert!(kept > 50 && prefetched > 200, "{kept}, {prefetched}");
    });
}

/// Where the schedule lists the offloaded activations, every other forward keeps its own.
#[test]
fn a_schedule_that_says_what_is_offloaded_keeps_the_rest() {
    watched(|| {
        let mut cases = 0;
        for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
            let plain = chunked(kind, 3, 6);
            let stages = (0..plain.schedule().stages()).map(StageId);
            let odd = stages.flat_map(|stage| [1, 3, 5].map(|micro| (stage, MicroId(micro))));
            let schedule = plain.schedule().clone().with_offloads(odd).check().unwrap();
            for (device, list) in told(&schedule).iter().enumerate() {
                let moves = schedule.schedule().offload_moves(DeviceId(device));
                for &(hints, action) in list {
                    if action.kind != ActionKind::Forward {
                        continue;
                    }
                    let of = (action.stage, action.micro);
                    let own = |hint: &ActivationHint| {
                        let consumer = hint.consumer();
                        matches!(hint, ActivationHint::Keep(_))
                            && (consumer.stage, consumer.micro) == of
                    };
                    let keeps = hints.iter().flatten().any(own);
                    let leaves = moves.iter().any(|one| one.released == Some(of));
                    assert_eq!(keeps, !leaves, "{kind}: {action}");
                    cases += usize::from(leaves);
                }
            }
        }
        assert!(cases > 50, "{cases}");
    });
}
