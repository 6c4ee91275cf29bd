//! Any failure in one replica is named and undone in all, exchanges included.

use crate::support::leafy::{Fault, Leafy, Settings, When};
use crate::support::replicas::{Replicas, builder, shares};
use crate::support::{How, recomputing, say, watched};
use gpipe_engine::{
    Address, Ballot, Carrier, Door, Engine, EngineError, Lost, Mesh, Phase, Program, Stage,
    StageBuilder, StageError, Topology, Verdict,
};
use gpipe_partitioner::{Action, DeviceId, ScheduleKind, StageId};
use std::sync::Arc;
use std::time::Duration;

fn stage_error(error: EngineError) -> StageError {
    match error {
        EngineError::Stage(error) => error,
        other => panic!("{other}"),
    }
}

/// Phase and message expected for a fault.
fn expected(fault: Fault) -> (Phase, String) {
    let Fault { stage, replica, .. } = fault;
    let at = format!("stage {stage} of replica {replica}, layer `leafy.{stage}`");
    let (phase, at) = match fault.when {
        When::Begin => (Phase::Begin, at),
        When::End => (Phase::End, at),
        When::Action(kind, micro) => (Phase::Action(kind), format!("{at}, micro-batch {micro}")),
        When::Exchange(round) => (Phase::Exchange(round), at),
    };
    let what = match fault.how {
        How::Panic => "panicked: made to panic",
        _ => "made to fail",
    };
    (phase, format!("{at}, {phase}: {what}"))
}

/// Injects every fault in turn, each with a good step after it; returns their number.
fn in_every_place(replicas: &mut Replicas) -> usize {
    replicas.good_step();
    let places = replicas.places().into_iter();
    let faults =
        places.flat_map(|place| [How::Error, How::Panic].map(|how| Fault::new(place, how)));
    let faults = faults.map(|fault| {
        let error = stage_error(replicas.bad_step(fault));
        let (phase, words) = expected(fault);
        assert_eq!(error.to_string(), words);
        assert_eq!(
            (error.stage, error.replica),
            (fault.stage, Some(fault.replica))
        );
        assert_eq!(error.action, phase);
        replicas.good_step();
    });
    faults.count()
}

#[test]
fn a_fault_in_any_action_and_any_round_of_an_exchange_is_named_and_undone() {
    for (kind, p, d, micros) in [
        (ScheduleKind::OneFOneB, 2, 2, 3),
        (ScheduleKind::Zbv, 2, 2, 3),
        (ScheduleKind::Interleaved1F1B, 2, 2, 3),
        (ScheduleKind::GPipe, 1, 4, 3),
        (ScheduleKind::ForwardOnly, 2, 2, 3),
    ] {
        watched(move || {
            let shares = shares(kind, p, d, micros);
            let faults = in_every_place(&mut Replicas::whole(&shares, None));
            say(&format!("{d} replicas of {kind}: {faults} faults injected"));
        });
    }
}

#[test]
fn a_fault_is_named_and_undone_in_every_process() {
    for (kind, d, micros, split) in [
        (ScheduleKind::OneFOneB, 2, 3, [0, 1, 0, 1]),
        (ScheduleKind::OneFOneB, 2, 1, [0, 0, 1, 1]),
        (ScheduleKind::Zbv, 2, 2, [0, 1, 2, 3]),
        (ScheduleKind::Zbv, 2, 2, [0, 1, 1, 0]),
    ] {
        watched(move || {
            let shares = shares(kind, 2, d, micros).into_iter();
            let shares = shares.map(|own| own.map(|own| recomputing(&own)));
            let shares: Vec<_> = shares.collect();
            let faults = in_every_place(&mut Replicas::parts(&shares, &split));
            say(&format!("{kind} over {split:?}: {faults} faults injected"));
        });
    }
}

#[test]
fn a_wrong_number_of_values_of_a_round_is_an_error() {
    watched(|| {
        let mut replicas = Replicas::whole(&shares(ScheduleKind::GPipe, 1, 4, 4), None);
        for (round, wanted) in [(0, 3), (1, 3), (2, 0)] {
            let place = (StageId(0), 2, When::Exchange(round));
            let error = replicas.bad_step(Fault::new(place, How::TooManyValues));
            let words = format!(
                "stage 0 of replica 2, layer `leafy.0`, round {round} of the exchange: returned {} \
                 values where {wanted} other replicas want one each",
                wanted + 1
            );
            assert_eq!(error.to_string(), words);
            replicas.good_step();
        }
    });
}

#[test]
fn a_stage_that_stalls_in_an_exchange_is_named() {
    watched(|| {
        let mut replicas = Replicas::whole(&shares(ScheduleKind::OneFOneB, 2, 2, 3), None);
        replicas.good_step();
        let place = (StageId(1), 1, When::Exchange(1));
        let settings = Settings {
            fault: Some(Fault::new(place, How::Blocks)),
            ..replicas.settings()
        };
        let engine = &mut replicas.ranks[0].engine;
        engine.set_patience(Some(Duration::from_millis(20)));
        let error = replicas.step(&settings).pop().unwrap().unwrap_err();
        let EngineError::Stalled(stall) = &error else {
            panic!("{error}")
        };
        assert_eq!((stall.stage, stall.replica), (Some(StageId(1)), Some(1)));
        assert_eq!((stall.action, stall.micro), (Phase::Exchange(1), None));
        let start = "device 3, stage 1 of replica 1, layer `leafy.1.1`, round 1 of the exchange: it has not";
        assert!(error.to_string().starts_with(start), "{error}");
        settings.gate.open();
        replicas.ranks[0].engine.set_patience(None);
        replicas.good_step();
    });
}

/// A stage that does not implement exchanges.
struct Alone;

impl Stage for Alone {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, _: Vec<()>) -> anyhow::Result<Vec<()>> {
        let gives = !action.kind.accumulates() || action.kind.gives_input_gradient();
        Ok(vec![(); usize::from(gives)])
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

#[test]
fn a_stage_without_an_exchange_cannot_train_as_one_of_several() {
    watched(|| {
        let build = || Box::new(|| Ok(vec![(StageId(0), Alone)])) as StageBuilder<Alone>;
        let mut engine = Engine::replicated(2, vec![build(), build()], None).unwrap();
        let mut step = |kind, rounds| {
            let shares = shares(kind, 1, 2, 2);
            let program = Program::replicated(shares, &Topology::chain(1), rounds, |_| true);
            let entry = |micro| gpipe_engine::Entry {
                edge: gpipe_engine::EdgeId(0),
                micro: gpipe_partitioner::MicroId(micro),
                value: (),
            };
            let entries = (0..2).map(entry).collect();
            engine.step(&Arc::new(program.unwrap()), Arc::new(()), entries)
        };
        let error = step(ScheduleKind::GPipe, 2).unwrap_err().to_string();
        let words = ", round 0 of the exchange: it has no exchange, without which replicas";
        assert!(error.contains(words), "{error}");
        step(ScheduleKind::GPipe, 0).unwrap();
        step(ScheduleKind::ForwardOnly, 2).unwrap();
    });
}

/// Carrier that cannot send to devices of other replicas.
struct NoWay;

impl<V> Carrier<V> for NoWay {
    fn begin(&self, _: &Arc<Program>, _: Arc<dyn Door<V>>) -> Result<(), Lost> {
        Ok(())
    }

    fn send(&self, to: Address, _: V) -> anyhow::Result<()> {
        anyhow::bail!("no way to device {}", to.device)
    }

    fn stop(&self, _: &str) {}

    fn vote(&self, ballot: Ballot) -> Result<Verdict, Lost> {
        Ok(Verdict::of(&[ballot]))
    }

    fn renew(&self) -> Result<(), Lost> {
        Ok(())
    }

    fn lose(&self, _: &str) {}
}

#[test]
fn what_an_exchange_cannot_send_is_an_error_of_its_round() {
    watched(|| {
        let build: StageBuilder<Leafy> = builder(vec![StageId(0)], 0, 2);
        let mesh = Mesh::new(1, 2);
        let device = DeviceId(0);
        let engine = Engine::part(mesh, vec![(device, build)], None, Arc::new(NoWay));
        let shares = shares(ScheduleKind::GPipe, 1, 2, 1);
        let topology = Topology::chain(1);
        let program = Program::replicated(shares, &topology, 2, |own| own == device).unwrap();
        let settings = Settings {
            micros: 1,
            training: true,
            ..Settings::default()
        };
        let result = engine
            .unwrap()
            .step(&Arc::new(program), Arc::new(settings), Vec::new());
        let error = stage_error(result.unwrap_err());
        assert_eq!(error.action, Phase::SendExchange(0));
        let words =
            "stage 0 of replica 0, sending after round 0 of the exchange: no way to device 1";
        assert_eq!(error.to_string(), words);
    });
}
