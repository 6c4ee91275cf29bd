//! A fault at every position of every schedule: the error names the position, nothing hangs, and
//! the next step gives the same result as without the fault.

use crate::support::rig::{Rig, stage_error};
use crate::support::{Fault, How, Settings, When, chunked, recomputing, say, watched};
use gpipe_engine::Phase;
use gpipe_partitioner::{Action, ActionKind, CheckedSchedule, ScheduleKind, Shape, StageId};
use std::collections::BTreeMap;

const P: usize = 3;
const M: usize = 4;

const FAULTS: [How; 3] = [How::Error, How::Panic, How::TooManyValues];

/// Returns every schedule with its usual chunks, `auto` also with two, and one device alone.
fn schedules() -> Vec<(String, CheckedSchedule)> {
    let named = |kind: ScheduleKind| (kind.to_string(), chunked(kind, P, M));
    let auto = ScheduleKind::Auto.generate(Shape::new(P, M).with_chunks(2));
    let mut all = ScheduleKind::ALL.map(named).to_vec();
    all.push(("auto over two chunks".to_owned(), auto.unwrap()));
    let alone = chunked(ScheduleKind::Zbv, 1, M);
    all.push(("zbv on one device".to_owned(), alone));
    all
}

/// Returns the schedule as it is and, for training, with recomputes.
fn variants(plain: CheckedSchedule) -> Vec<CheckedSchedule> {
    let training = plain.is_training();
    let recomputing = training.then(|| recomputing(&plain));
    recomputing.into_iter().chain([plain]).collect()
}

/// Returns the message that the engine must give for `how` in `action`.
fn expected(action: Action, how: How) -> String {
    let place = match action.kind {
        ActionKind::Forward => "forward",
        ActionKind::Backward => "backward",
        ActionKind::BackwardInput => "backward of the input",
        ActionKind::BackwardWeight => "backward of the weights",
        ActionKind::Recompute => "recompute",
    };
    let edges =
        usize::from(action.kind == ActionKind::Forward || action.kind.gives_input_gradient());
    let message = match how {
        How::Error => "made to fail".to_owned(),
        How::Panic => "panicked: made to panic".to_owned(),
        How::TooManyValues => format!(
            "returned {} values where {edges} edges want one each",
            edges + 1
        ),
        How::Blocks | How::ErrorBeside => unreachable!("these are not tried at every position"),
    };
    let Action { stage, micro, .. } = action;
    format!("stage {stage}, layer `affine.{stage}`, micro-batch {micro}, {place}: {message}")
}

fn with_fault(stage: StageId, when: When, how: How) -> Settings {
    Settings {
        faults: vec![Fault { stage, when, how }],
        ..Settings::default()
    }
}

/// Injects every fault in every action of `schedule`; returns their number.
fn in_every_action(rig: &mut Rig, schedule: &CheckedSchedule) -> usize {
    let lists = schedule.schedule().iter().flat_map(|(_, list)| list);
    let faults = lists.flat_map(|action| FAULTS.map(|how| (*action, how)));
    faults
        .map(|(action, how)| {
            let when = When::Action(action.kind, action.micro);
            let error = stage_error(rig.fail(with_fault(action.stage, when, how)));
            assert_eq!(error.to_string(), expected(action, how));
            assert_eq!(
                (error.stage, error.micro),
                (action.stage, Some(action.micro))
            );
            assert_eq!(error.action, Phase::Action(action.kind));
            assert_eq!(error.layer, Some(format!("affine.{}", action.stage)));
            rig.check_unharmed();
        })
        .count()
}

/// Injects an error and a panic in the begin and the end of every stage; returns their number.
fn in_begin_and_end(rig: &mut Rig, schedule: &CheckedSchedule) -> usize {
    let stages = (0..schedule.schedule().stages()).map(StageId);
    let places = [(When::Begin, Phase::Begin), (When::End, Phase::End)];
    let all = stages.flat_map(|stage| {
        let hows = [How::Error, How::Panic];
        hows.into_iter()
            .flat_map(move |how| places.map(|(when, phase)| (stage, when, phase, how)))
    });
    all.map(|(stage, when, phase, how)| {
        let error = stage_error(rig.fail(with_fault(stage, when, how)));
        assert_eq!(
            (error.stage, error.micro, error.action),
            (stage, None, phase)
        );
        assert_eq!(error.layer, Some(format!("affine.{stage}")));
        rig.check_unharmed();
    })
    .count()
}

#[test]
fn a_fault_at_any_position_of_any_schedule_is_named_and_undone() {
    let mut kinds: BTreeMap<char, usize> = BTreeMap::new();
    let (mut programs, mut faults) = (0, 0);
    for (name, plain) in schedules() {
        let mut here = 0;
        for schedule in variants(plain) {
            for action in schedule.schedule().iter().flat_map(|(_, list)| list) {
                *kinds.entry(action.kind.letter()).or_default() += FAULTS.len();
            }
            here += watched(move || {
                let mut rig = Rig::new(schedule.clone());
                in_every_action(&mut rig, &schedule) + in_begin_and_end(&mut rig, &schedule)
            });
            programs += 1;
        }
        say(&format!("{name}: {here} faults injected"));
        faults += here;
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, n)| format!("{n} in {kind}"))
        .collect();
    say(&format!(
        "{faults} faults injected in {programs} schedules: {}, the rest in begin and end",
        kinds.join(", ")
    ));
}
