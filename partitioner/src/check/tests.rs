//! Tests of the rules, one by one.

use super::*;

/// A schedule of 2 stages and 2 micro-batches unless the lists say otherwise.
fn schedule(lists: &[&str]) -> Schedule {
    let parse = |list: &&str| {
        list.split_whitespace()
            .map(|a| a.parse().unwrap())
            .collect()
    };
    Schedule::new("test", 2, 2, lists.iter().map(parse).collect())
}

fn message(lists: &[&str]) -> String {
    schedule(lists).check().unwrap_err().to_string()
}

#[test]
fn a_legal_schedule_is_known_inside_out() {
    let checked = schedule(&["0F0 0F1 0B0 0B1", "1F0 1I0 1F1 1I1 1W0 1W1"])
        .check()
        .unwrap();
    assert!(checked.is_training() && checked.accumulates_in_order());
    assert_eq!(checked.device_of(StageId(1)), DeviceId(1));
    assert_eq!(checked.stages_on(DeviceId(0)), [StageId(0)]);
    assert_eq!([0, 1].map(|s| checked.peak_in_flight(StageId(s))), [2, 2]);
    assert_eq!(checked.peak_in_flight_on(DeviceId(1)), 2.0);
    assert_eq!(checked.peak_in_flight_on(DeviceId(7)), 0.0);
}

#[test]
fn accumulation_out_of_order_is_known() {
    let checked = schedule(&["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"])
        .check()
        .unwrap();
    assert!(!checked.accumulates_in_order());
}

#[test]
fn inference_holds_one_micro_batch() {
    let checked = schedule(&["0F0 0F1", "1F0 1F1"]).check().unwrap();
    assert!(!checked.is_training());
    assert_eq!(checked.peak_in_flight(StageId(0)), 1);
}

#[test]
fn a_device_counts_a_chunk_as_its_share() {
    let lists = ["0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1"];
    let checked = schedule(&lists).check().unwrap();
    assert_eq!(checked.peak_in_flight_on(DeviceId(0)), 2.0);
    assert_eq!(checked.stages_on(DeviceId(0)).len(), 2);
}

#[test]
fn what_is_missing_is_named() {
    let full = "0F0 0F1 0B0 0B1";
    assert_eq!(
        message(&[full, "1F0 1B0 1F1"]),
        "1B1 is missing on device 1"
    );
    assert_eq!(
        message(&[full, "1F0 1B0 1B1"]),
        "1F1 is missing on device 1"
    );
    assert_eq!(
        message(&[full, "1F0 1B0 1F1 1I1"]),
        "1W1 is missing on device 1"
    );
    assert_eq!(
        message(&[full, "1F0 1B0 1F1 1W1"]),
        "1I1 is missing on device 1"
    );
    assert_eq!(
        message(&[full, ""]),
        "1F0 is missing (no device has this stage)"
    );
}

#[test]
fn what_is_doubled_is_named() {
    let full = "0F0 0F1 0B0 0B1";
    assert_eq!(
        message(&[full, "1F0 1B0 1F1 1F0 1B1"]),
        "device 1, action 3: 1F0 for the second time"
    );
    assert_eq!(
        message(&[full, "1F0 1B0 1I0 1F1 1B1"]),
        "device 1, action 2: 1I0, but this micro-batch already has a joint backward (B): a stage does either B or I and W"
    );
    assert_eq!(
        message(&[full, "1F0 1I0 1B0 1F1 1B1"]),
        "device 1, action 2: 1B0, but this micro-batch already has a half backward (I or W): a stage does either B or I and W"
    );
}

#[test]
fn what_is_in_the_wrong_place_is_named() {
    assert_eq!(
        message(&["0F0 0F1 0B0 0B1 1F0", "1B0 1F1 1B1"]),
        "device 1, action 0: 1B0, but stage 1 is on device 0"
    );
    assert_eq!(
        message(&["0F0 0F1 0B0 0B1 0R1", "1F0 1B0 1F1 1B1"]),
        "device 0, action 4: 0R1 comes after the backward of its micro-batch"
    );
    assert_eq!(
        message(&["0F0 0F1 0B0 0B1 2F0", "1F0 1B0 1F1 1B1"]),
        "device 0, action 4: 2F0 is out of range: there are 2 stages and 2 micro-batches"
    );
    assert!(message(&["0F0 0F1 0B0 0B9", ""]).contains("0B9 is out of range"));
}

#[test]
fn a_device_that_waits_for_itself_is_a_deadlock_of_one() {
    assert_eq!(
        message(&["0B0 0F0 0F1 0B1", "1F0 1B0 1F1 1B1"]),
        "deadlock: device 0, action 0: 0B0 waits for 0F0 later on the same device"
    );
}

#[test]
fn a_deadlock_over_devices_names_its_cycle() {
    let lists = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"];
    assert_eq!(
        message(&lists),
        "deadlock: device 0, action 1: 0B0 waits for 1B0 on device 1; \
         device 1, action 1: 1F1 waits for 0F1 on device 0"
    );
}

#[test]
fn recompute_lies_between_forward_and_backward() {
    schedule(&["0F0 0F1 0R0 0B0 0B1", "1F0 1R0 1B0 1F1 1B1"])
        .check()
        .unwrap();
    let late = schedule(&["0R0 0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]).check();
    assert!(matches!(late, Err(CheckError::Deadlock { .. })));
}

#[test]
fn empty_and_enormous_schedules_are_refused_without_allocating() {
    let sized = |stages, micros| Schedule::new("test", stages, micros, vec![]).check();
    assert!(matches!(sized(0, 3), Err(CheckError::Empty { .. })));
    assert!(matches!(sized(3, 0), Err(CheckError::Empty { .. })));
    let huge = 1_000_000_000_000_000_000;
    for (stages, micros) in [
        (huge, 1),
        (1, huge),
        (huge, huge),
        (usize::MAX, 2),
        (MAX_STAGES + 1, 1),
    ] {
        assert!(matches!(
            sized(stages, micros),
            Err(CheckError::TooLarge { .. })
        ));
    }
}

#[test]
fn what_is_offloaded_is_left_by_a_forward_of_a_training_step() {
    let own = |stage, micro| [(crate::ids::StageId(stage), crate::ids::MicroId(micro))];
    let training = schedule(&["0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1"]);
    training.clone().with_offloads(own(0, 1)).check().unwrap();
    for (stage, micro) in [(2, 0), (0, 2)] {
        let error = training.clone().with_offloads(own(stage, micro)).check();
        let text = error.unwrap_err().to_string();
        let said =
            format!("micro-batch {micro} on stage {stage} are offloaded, but there is no such");
        assert!(text.contains(&said), "{text}");
    }
    let inference = schedule(&["0F0 0F1 1F0 1F1"]).with_offloads(own(0, 1));
    let text = inference.check().unwrap_err().to_string();
    assert!(text.contains("inference keeps none"), "{text}");
}
