//! Explanations of the difference between a measured and a predicted step.

use gpipe_partitioner::explain::{Cause, Delta, ExplainError, explain, explain_with_transfers};
use gpipe_partitioner::simulate::replay;
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, Costs, DeviceId, EdgeTimes, Explanation, Micros,
    ScheduleKind, Shape, Simulation, Span, StageId, Timeline, simulate,
};
use proptest::prelude::*;

fn micros(time: f64) -> Micros {
    Micros::new(time).unwrap()
}

fn uniform(schedule: &CheckedSchedule, time: f64) -> Costs {
    let time = micros(time);
    Costs::uniform(schedule.schedule().stages(), time, time, time)
}

fn schedule(kind: ScheduleKind, devices: usize, micro: usize) -> CheckedSchedule {
    let shape = Shape::new(devices, micro).with_chunks(kind.default_chunks());
    kind.generate(shape).unwrap()
}

/// Runs `schedule` as an engine does: one action after the other, each delayed by `late`.
fn run(
    schedule: &CheckedSchedule,
    costs: &Costs,
    late: Micros,
    duration: impl Fn(Action) -> Micros,
) -> Timeline {
    let apart = schedule.schedule().clone().with_pairs(vec![]).check();
    let timeline = replay(&apart.unwrap(), costs, |action| duration(action) + late);
    let spans = timeline.spans().iter().map(|span| Span {
        start: span.start + late,
        ..*span
    });
    Timeline::new(timeline.devices(), spans.collect())
}

fn delta(explanation: &Explanation, cause: Cause) -> Delta {
    let found = explanation.differences().iter().find(|d| d.cause == cause);
    found.map_or(Delta::ZERO, |difference| difference.delta)
}

/// Checks that only `cause` makes a difference.
#[track_caller]
fn only(explanation: &Explanation, cause: Cause) {
    assert_eq!(explanation.largest().cause, cause);
    assert_eq!(delta(explanation, cause), explanation.difference());
    assert_ne!(explanation.difference(), Delta::ZERO);
    for other in Cause::ALL.into_iter().filter(|&other| other != cause) {
        assert_eq!(delta(explanation, other), Delta::ZERO, "{other}");
    }
}

/// Returns 1F1B over three devices, with six micro-batches and 100 µs per action.
fn three() -> (CheckedSchedule, Costs, Simulation) {
    let schedule = schedule(ScheduleKind::OneFOneB, 3, 6);
    let costs = uniform(&schedule, 100.0).with_transfer(micros(5.0), micros(5.0));
    let prediction = simulate(&schedule, &costs);
    (schedule, costs, prediction)
}

#[test]
fn a_step_as_predicted_has_no_differences() {
    for kind in ScheduleKind::ALL {
        let schedule = schedule(kind, 3, 6);
        let prediction = simulate(&schedule, &uniform(&schedule, 0.1));
        let explanation = explain(&prediction, &prediction.timeline).unwrap();
        for difference in explanation.differences() {
            // The prediction of pairs is that they run as one.
            let pairs = difference.cause == Cause::Pairs;
            let engine = difference.cause == Cause::Engine && kind == ScheduleKind::DualPipeV;
            assert!(
                pairs || engine || difference.delta == Delta::ZERO,
                "{kind} {difference:?}"
            );
        }
        assert_eq!(explanation.difference(), Delta::ZERO, "{kind}");
        if kind == ScheduleKind::ZbH1 {
            let sentence = explanation.sentence("The step");
            assert_eq!(sentence, "The step took 2.0 µs, as predicted.");
            let brief = "2.0 µs, as simulated from its stages' median times";
            assert_eq!(explanation.brief(), brief);
        }
    }
}

#[test]
fn a_single_slow_action_is_named() {
    let (schedule, costs, prediction) = three();
    let slow: Action = "1B4".parse().unwrap();
    let timeline = run(&schedule, &costs, Micros::ZERO, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        if action == slow { usual * 5.0 } else { usual }
    });
    let explanation = explain(&prediction, &timeline).unwrap();
    only(&explanation, Cause::SlowStage);
    let sentence = explanation.sentence("Step 7");
    assert!(
        sentence.ends_with(
            "is a slow stage (+680.0 µs): stage 1's backward of micro-batch 4 took 1.00 ms \
             where 200.0 µs was predicted."
        ),
        "{sentence}"
    );
    let brief = explanation.brief();
    assert!(
        brief.contains("; simulated from its stages' median times: ")
            && brief.ends_with(". Mostly a slow stage (+680.0 µs)"),
        "{brief}"
    );
}

#[test]
fn a_faster_stage_is_named_too() {
    let (schedule, costs, prediction) = three();
    let faster = costs.clone().scaled(StageId(0), 0.5);
    let measured = simulate(&schedule, &faster).timeline;
    let explanation = explain(&prediction, &measured).unwrap();
    only(&explanation, Cause::SlowStage);
    let sentence = explanation.sentence("Step 1");
    assert!(sentence.contains("shorter than predicted"), "{sentence}");
    assert!(
        sentence.contains("is a fast stage (-") && sentence.contains("stage 0's backward took"),
        "{sentence}"
    );
}

/// Regression: the summary named a fast stage without the reason.
#[test]
fn passes_that_are_faster_while_others_are_idle_are_told_so() {
    let schedule = schedule(ScheduleKind::OneFOneB, 2, 4);
    let costs = uniform(&schedule, 100.0);
    // Device 1 has no work yet, or none any more.
    let alone: Vec<Action> = ["0F0", "0B3"].map(|own| own.parse().unwrap()).into();
    let timeline = run(&schedule, &costs, Micros::ZERO, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        if alone.contains(&action) {
            usual * 0.5
        } else {
            usual
        }
    });
    let prediction = simulate(&schedule, &costs);
    let sentence = explain(&prediction, &timeline).unwrap().sentence("Step 9");
    assert!(
        sentence.ends_with(
            "stage 0's backward took 175.0 µs on average where 200.0 µs was predicted, 12 % shorter; \
             100.0 µs while the other devices were idle, 200.0 µs beside them, as they share the machine."
        ),
        "{sentence}"
    );
}

/// Regression: with two micro-batches the median is the mean, and a stage's mean equal to its
/// prediction was named: "0.0 % longer" in a step that was shorter.
#[test]
fn averages_that_are_as_predicted_are_not_named() {
    let schedule = schedule(ScheduleKind::GPipe, 2, 2);
    let costs = uniform(&schedule, 200.0);
    let prediction = simulate(&schedule, &costs);
    let timeline = run(&schedule, &costs, Micros::ZERO, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        match (action.stage.index(), action.kind, action.micro.index()) {
            (0, ActionKind::Forward, 0) | (1, ActionKind::Forward, 1) => usual * 0.5,
            (0, ActionKind::Forward, 1) | (1, ActionKind::Forward, 0) => usual * 1.5,
            _ => usual,
        }
    });
    let explanation = explain(&prediction, &timeline).unwrap();
    let sentence = explanation.sentence("Step 10");
    assert!(
        sentence.contains("shorter than predicted")
            && sentence.ends_with(
                "is a fast stage (-100.0 µs): single actions differ, the averages of stages do not."
            ),
        "{sentence}"
    );
}

#[test]
fn slow_first_actions_are_warm_up() {
    let (schedule, costs, prediction) = three();
    let timeline = run(&schedule, &costs, Micros::ZERO, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        match (action.stage.index(), action.kind, action.micro.index()) {
            (0, ActionKind::Forward, 0) => usual * 9.0,
            (0, ActionKind::Forward, 1) => usual * 2.0,
            _ => usual,
        }
    });
    let explanation = explain(&prediction, &timeline).unwrap();
    only(&explanation, Cause::WarmUp);
    let sentence = explanation.sentence("Step 1");
    assert!(
        sentence.ends_with(
            "is warm-up (+800.0 µs): stage 0's first 2 forwards together took 900.0 µs more than the median of \
             100.0 µs."
        ),
        "{sentence}"
    );
}

#[test]
fn a_first_action_that_is_followed_by_a_slower_one_does_not_excuse_it() {
    let (schedule, costs, prediction) = three();
    let timeline = run(&schedule, &costs, Micros::ZERO, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        match action.to_string().as_str() {
            "0F0" => usual * 2.0,
            "0F1" => usual * 9.0,
            _ => usual,
        }
    });
    let explanation = explain(&prediction, &timeline).unwrap();
    assert_eq!(explanation.largest().cause, Cause::SlowStage);
    assert_eq!(explanation.stages()[0].warming, 1);
    let sentence = explanation.sentence("Step 1");
    assert!(
        sentence.contains("stage 0's forward of micro-batch 1"),
        "{sentence}"
    );
}

#[test]
fn a_slow_link_is_named_where_the_caller_knows_it_and_is_the_engines_where_not() {
    let (schedule, costs, prediction) = three();
    let slow = EdgeTimes {
        occupancy: micros(70.0),
        latency: micros(30.0),
    };
    let measured_costs = costs.clone().with_edge(StageId(1), slow);
    let timeline = simulate(&schedule, &measured_costs).timeline;
    let known = explain_with_transfers(&prediction, &timeline, |edge| measured_costs.edge(edge));
    let known = known.unwrap();
    only(&known, Cause::Link);
    let sentence = known.sentence("Step 1");
    assert!(
        sentence.ends_with(
            "from stage 1 to stage 2 a value took 100.0 µs where 10.0 µs was predicted."
        ),
        "{sentence}"
    );
    assert!(
        known
            .devices()
            .iter()
            .all(|row| row.overhead < micros(0.001))
    );
    only(&explain(&prediction, &timeline).unwrap(), Cause::Engine);
}

#[test]
fn late_starts_are_the_engines() {
    let (schedule, costs, prediction) = three();
    let usual = |action: Action| costs.stage(action.stage).of(action.kind);
    let timeline = run(&schedule, &costs, micros(8.0), usual);
    let explanation = explain(&prediction, &timeline).unwrap();
    only(&explanation, Cause::Engine);
    let sentence = explanation.sentence("Step 1");
    assert!(
        sentence.contains("is the engine (+") && sentence.contains("was ready"),
        "{sentence}"
    );
    for row in explanation.devices() {
        // The clock begins at the very first start.
        let late = 8.0 * 12.0 - if row.device == DeviceId(0) { 8.0 } else { 0.0 };
        assert!((row.overhead.get() - late).abs() < 1e-6, "{row:?}");
    }
}

#[test]
fn pairs_run_apart_are_a_cause_of_their_own() {
    let schedule = schedule(ScheduleKind::DualPipeV, 3, 8);
    let costs = uniform(&schedule, 10.0);
    let prediction = simulate(&schedule, &costs);
    let usual = |action: Action| costs.stage(action.stage).of(action.kind);
    let explanation = explain(&prediction, &run(&schedule, &costs, Micros::ZERO, usual)).unwrap();
    only(&explanation, Cause::Pairs);
    assert!(explanation.difference() < Delta::ZERO);
}

#[test]
fn differences_that_even_out_are_told() {
    let (schedule, costs, prediction) = three();
    // Every stage is faster by as much as every start is late.
    let faster = |action: Action| costs.stage(action.stage).of(action.kind) - micros(20.0);
    let timeline = run(&schedule, &costs, micros(20.0), faster);
    let explanation = explain(&prediction, &timeline).unwrap();
    let slow = delta(&explanation, Cause::SlowStage);
    assert!(slow < Delta::ZERO && delta(&explanation, Cause::Engine) > Delta::ZERO);
}

#[test]
fn runs_of_another_schedule_are_refused() {
    let (_, _, prediction) = three();
    let whole = prediction.timeline.spans().to_vec();
    let refused = |spans: Vec<Span>| explain(&prediction, &Timeline::new(3, spans)).unwrap_err();

    let missing = refused(whole[1..].to_vec());
    assert!(
        matches!(missing, ExplainError::NotMeasured { .. }),
        "{missing}"
    );
    assert!(
        missing
            .to_string()
            .starts_with("0F0 of device 0 was not measured")
    );

    let twice = refused(whole.iter().chain(&whole[..1]).copied().collect());
    assert!(matches!(twice, ExplainError::Twice { .. }), "{twice}");

    for wrong in ["0R0", "3F0", "0F6"] {
        let span = Span {
            action: wrong.parse().unwrap(),
            ..whole[0]
        };
        let error = refused(whole.iter().chain([&span]).copied().collect());
        assert!(
            matches!(error, ExplainError::NotScheduled { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(wrong), "{error}");
    }
    let elsewhere = Span {
        device: DeviceId(1),
        ..whole[0]
    };
    let error = refused(whole[1..].iter().chain([&elsewhere]).copied().collect());
    assert!(
        matches!(error, ExplainError::NotScheduled { .. }),
        "{error}"
    );
    assert!(matches!(refused(vec![]), ExplainError::NotMeasured { .. }));
}

/// Returns a number from 0 to below 1, determined by the action and `seed`.
fn noise(seed: u64, action: Action) -> f64 {
    let place = (action.stage.index() * 1009 + action.micro.index()) * 5 + action.kind as usize;
    let mut mixed = (seed ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

proptest! {
    #[test]
    fn the_causes_and_the_devices_times_add_up(
        kind in prop::sample::select(ScheduleKind::ALL.to_vec()),
        devices in 1usize..5,
        micro in 1usize..9,
        seed in any::<u64>(),
        late in 0.0f64..30.0,
        link in 0.0f64..80.0,
    ) {
        let schedule = schedule(kind, devices, micro);
        let prediction = simulate(&schedule, &uniform(&schedule, 97.3));
        let slow_links = prediction.costs().clone().with_transfer(micros(link), micros(link / 3.0));
        let timeline = run(&schedule, &slow_links, micros(late), |action| {
            micros(60.0 + 80.0 * noise(seed, action))
        });
        let explanation =
            explain_with_transfers(&prediction, &timeline, |edge| slow_links.edge(edge)).unwrap();
        let sum: Delta = explanation.differences().iter().map(|d| d.delta).sum();
        prop_assert_eq!(sum, explanation.difference());
        prop_assert_eq!(
            explanation.difference(),
            Delta::between(prediction.makespan(), timeline.makespan())
        );
        for row in explanation.devices() {
            let whole = row.busy + row.waiting + row.link + row.overhead;
            prop_assert!((whole.get() - timeline.makespan().get()).abs() < 1e-6, "{:?}", row);
            let starts = timeline.spans_on(row.device).len() as f64;
            prop_assert!(row.overhead.get() <= late * starts + 1e-6);
        }
        prop_assert!(delta(&explanation, Cause::Engine).nanos() >= -1);
        prop_assert!(delta(&explanation, Cause::Link).nanos() >= -1);
        let sentence = explanation.sentence("The step");
        prop_assert!(sentence.ends_with('.') && !sentence.contains("NaN"));
    }

    #[test]
    fn a_slowed_stage_is_named(
        kind in prop::sample::select(ScheduleKind::ALL.to_vec()),
        devices in 1usize..5,
        micro in 1usize..9,
        which in any::<prop::sample::Index>(),
        factor in 1.3f64..4.0,
    ) {
        let schedule = schedule(kind, devices, micro);
        let stage = StageId(which.index(schedule.schedule().stages()));
        let costs = uniform(&schedule, 100.0);
        let prediction = simulate(&schedule, &costs);
        let timeline = simulate(&schedule, &costs.scaled(stage, factor)).timeline;
        prop_assume!(timeline.makespan() > prediction.makespan() * 1.01);
        let explanation = explain(&prediction, &timeline).unwrap();
        for row in explanation.stages() {
            prop_assert_eq!(row.extra > Delta::ZERO, row.stage == stage);
        }
        if (0..devices).any(|device| !schedule.schedule().pairs(DeviceId(device)).is_empty()) {
            // This run overlaps its pairs, as predicted; the cost of running them separately, which
            // the engine's share cancels, may exceed the stage's.
            let apart = delta(&explanation, Cause::Pairs) + delta(&explanation, Cause::Engine);
            prop_assert_eq!(apart, Delta::ZERO);
            prop_assert_eq!(delta(&explanation, Cause::SlowStage), explanation.difference());
            return Ok(());
        }
        prop_assert_eq!(explanation.largest().cause, Cause::SlowStage);
        let named = format!("stage {stage}'s");
        let sentence = explanation.sentence("The step");
        prop_assert!(sentence.contains(&named), "{}", sentence);
    }
}
