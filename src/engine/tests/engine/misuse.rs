//! Programs, entries and edges that do not fit are refused with a clear error before anything runs.

use crate::support::{Affine, affine_engine, entries, schedule, watched};
use gpipe_engine::{
    Edge, EdgeId, End, Engine, EngineError, Entry, EntryError, Program, StepOutcome, Topology,
    TopologyError,
};
use gpipe_partitioner::{Action, MicroId, Schedule, ScheduleKind, Shape, StageId};
use std::sync::Arc;

fn chain(p: usize, m: usize) -> (Engine<Affine>, Program) {
    let (topology, schedule) = (Topology::chain(p), schedule(ScheduleKind::GPipe, p, m));
    let engine = affine_engine(&schedule, &Arc::new(topology.clone()));
    (engine, Program::new(schedule, &topology).unwrap())
}

fn step(
    engine: &mut Engine<Affine>,
    program: &Arc<Program>,
) -> Result<StepOutcome<i64>, EngineError> {
    engine.step(program, Arc::default(), entries(program, 0))
}

#[test]
fn a_program_for_other_devices_or_another_placement_is_refused() {
    watched(|| {
        let (mut engine, _) = chain(2, 1);
        let (_, program) = chain(3, 1);
        let error = step(&mut engine, &Arc::new(program)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "schedule `gpipe` is for 3 devices, the engine has 2"
        );
        let row = |row: &str| vec![row.parse::<Action>().unwrap()];
        let swapped = Schedule::new("swapped", 2, 1, vec![row("1F0"), row("0F0")]);
        let program = Program::new(swapped.check().unwrap(), &Topology::chain(2)).unwrap();
        let error = step(&mut engine, &Arc::new(program)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "schedule `swapped` has stages [1] on device 0, the engine has [0] there"
        );
        let (_, program) = chain(2, 3);
        step(&mut engine, &Arc::new(program)).unwrap();
    });
}

#[test]
fn entries_must_be_exactly_one_per_edge_from_the_caller_and_micro_batch() {
    watched(|| {
        let topology = Arc::new(Topology::chain(2));
        let schedule = schedule(ScheduleKind::GPipe, 2, 3);
        let mut engine = affine_engine(&schedule, &topology);
        let program = Arc::new(Program::new(schedule, &topology).unwrap());
        let mut refused =
            |entries| match engine.step(&program, Arc::default(), entries).unwrap_err() {
                EngineError::Entry(error) => error,
                other => panic!("{other}"),
            };
        let good = || entries(&program, 0);
        let (edge, micro) = (EdgeId(0), MicroId(2));
        assert_eq!(
            refused(good()[..2].to_vec()),
            EntryError::Missing { edge, micro }
        );
        let again = good().into_iter().chain(good().pop()).collect();
        assert_eq!(refused(again), EntryError::Twice { edge, micro });
        for (edge, micro) in [(EdgeId(1), MicroId(0)), (EdgeId(0), MicroId(3))] {
            let stray = Entry {
                edge,
                micro,
                value: 0,
            };
            let entries = good().into_iter().chain([stray]).collect();
            assert_eq!(refused(entries), EntryError::Unwanted { edge, micro });
        }
        let backwards = good().into_iter().rev().collect();
        engine.step(&program, Arc::default(), backwards).unwrap();
    });
}

#[test]
fn edges_that_no_schedule_can_serve_are_refused() {
    let stage = |stage| End::Stage(StageId(stage));
    let refused = |from, to, gradient| {
        Topology::new(2, vec![Edge { from, to, gradient }])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(stage(0), stage(2), true),
        "edge 0 names stage 2, but there are 2 stages"
    );
    assert_eq!(
        refused(stage(1), stage(0), true),
        "edge 0 leads from stage 1 to stage 0: values flow to later stages only"
    );
    assert_eq!(
        refused(End::Caller, End::Caller, false),
        "edge 0 leads from the caller to the caller"
    );
    assert_eq!(
        refused(stage(1), End::Caller, true),
        "edge 0 leads to the caller, which sends no gradient back"
    );
    let shape = Shape {
        devices: 2,
        chunks: 1,
        micro_batches: 2,
    };
    let schedule = ScheduleKind::GPipe.generate(shape).unwrap();
    let error = Program::new(schedule, &Topology::chain(3)).unwrap_err();
    assert!(matches!(
        error,
        TopologyError::Stages {
            scheduled: 2,
            stages: 3,
            ..
        }
    ));
}
