//! Tests of writing and reading plans.

use proptest::prelude::*;

use super::*;

fn sample() -> Plan {
    let mut options = options(2);
    options.machine = options
        .machine
        .with_memory(&["100MiB".parse().unwrap()])
        .unwrap();
    options.micro_batches = Some(16);
    plan(&profile(&[1.5; 6]), &options).unwrap()
}

/// Returns the sample plan for two replicas on two nodes.
fn spread_sample() -> Plan {
    let mut plan = sample();
    let nodes = Nodes::new(vec![1, 3], "1GB/s,2us".parse().unwrap()).unwrap();
    (plan.replicas, plan.nodes, plan.micro_batches) = (2, Some(nodes), 32);
    plan
}

#[test]
fn a_plan_survives_writing_and_reading() {
    for plan in [sample(), spread_sample()] {
        assert_eq!(Plan::from_json(plan.to_json(), "plan.json").unwrap(), plan);
    }
    let plain = sample().to_json();
    assert!(!plain.contains("replicas") && !plain.contains("nodes"));
}

/// A plan names its model, so that it is not used for another one.
#[test]
fn a_plan_names_the_model_that_was_profiled() {
    let model = ModelId::new("mlp", [("depth", 5.0)]);
    let profile = profile(&[1.5; 6]).with_model(model.clone());
    let plan = plan(&profile, &options(2)).unwrap();
    assert_eq!(plan.model.as_ref(), Some(&model));
    assert_eq!(Plan::from_json(plan.to_json(), "plan.json").unwrap(), plan);
    assert_eq!(sample().model, None);
}

#[test]
fn alternatives_say_what_they_need_where_they_fit() {
    let plan = sample();
    let (fit, misfit): (Vec<&Alternative>, Vec<&Alternative>) =
        plan.alternatives.iter().partition(|a| a.step.is_some());
    assert!(!fit.is_empty());
    let limit: Bytes = "100MiB".parse().unwrap();
    for alternative in fit {
        let peaks = &alternative.peak_bytes;
        assert_eq!(peaks.len(), 2);
        assert!(
            peaks
                .iter()
                .all(|&peak| peak > Bytes::ZERO && peak <= limit)
        );
    }
    assert!(misfit.iter().all(|a| a.peak_bytes.is_empty()));
}

#[test]
fn a_plan_without_peaks_of_its_alternatives_is_read() {
    let mut plan = sample();
    let mut json: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    for alternative in json["alternatives"].as_array_mut().unwrap() {
        alternative.as_object_mut().unwrap().remove("peak_bytes");
    }
    for alternative in &mut plan.alternatives {
        alternative.peak_bytes.clear();
    }
    let read = Plan::from_json(json.to_string(), "plan.json").unwrap();
    assert_eq!(read, plan);
}

#[test]
fn errors_name_file_field_and_rule() {
    use serde_json::{Value, json};
    let text = sample().to_json();
    let broken = |name: &str, value: Value| {
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json[name] = value;
        Plan::from_json(json.to_string(), "plan.json")
            .unwrap_err()
            .to_string()
    };
    for (name, value, message) in [
        ("version", json!(2), "version: 2 is not a version"),
        (
            "chunks",
            json!(7),
            "2 devices (entries of peak_bytes) with 7 chunks",
        ),
        (
            "schedule",
            json!("1f1c"),
            "schedule: there is no schedule `1f1c`: did you mean",
        ),
        (
            "step_us",
            json!(-1.0),
            "step_us: must be a number from 0 to",
        ),
        (
            "step_us",
            json!(1e18),
            "step_us: must be a number from 0 to",
        ),
        (
            "micro_batches",
            json!(1_000_000_000_000_000_000_u64),
            "micro_batches: must be a whole number",
        ),
        (
            "bubble_fraction",
            json!(1.5),
            "bubble_fraction: must be a number from 0 to 1, is 1.5",
        ),
        ("recompute", json!([1, 2]), "recompute"),
        ("placement", json!([0, 9]), "placement"),
        ("colour", json!(3), "colour: is not a field here"),
    ] {
        let error = broken(name, value);
        assert!(
            error.starts_with(&format!("plan.json: {message}")),
            "{error}"
        );
    }
}

/// Unequal stages and expensive links, for which the built-in orders are not the best.
#[test]
fn a_computed_schedule_travels_with_the_plan() {
    let mut options = options(3);
    options.machine = options.machine.with_link("100MB/s,5us".parse().unwrap());
    options.schedule = Some(ScheduleKind::Auto);
    options.micro_batches = Some(5);
    let plan = plan(&profile(&[900.0, 4000.0, 700.0, 2500.0]), &options).unwrap();
    let read = Plan::from_json(plan.to_json(), "plan.json").unwrap();
    assert_eq!(read, plan);
    let schedule = read.generate().unwrap();
    let problem = Problem::new(
        &profile(&[900.0, 4000.0, 700.0, 2500.0]),
        4,
        &options.machine,
        &schedule,
    );
    let costs = problem.stage_costs(&plan.partition, &plan.recompute, &plan.offload);
    assert_eq!(simulate(&schedule, &costs).makespan(), plan.step);
    if plan.computed.is_some() {
        let text = plan.to_json();
        let broken = text.replacen("0F0", "0F4", 1);
        let error = Plan::from_json(broken, "plan.json")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("plan.json: actions: "), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_text_never_panics(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0..3), 1..6),
    ) {
        let mut text = spread_sample().to_json().into_bytes();
        for (index, byte, how) in edits {
            let at = index.index(text.len());
            match how {
                0 => text[at] = byte,
                1 => { text.remove(at); }
                _ => text.insert(at, byte),
            }
        }
        if let Ok(plan) = Plan::from_json(&text, "plan.json") {
            prop_assert_eq!(Plan::from_json(plan.to_json(), "plan.json"), Ok(plan));
        }
    }
}

#[test]
fn a_profile_in_place_of_a_plan_is_called_that_and_the_other_way_round() {
    let time = Micros::new(1.0).unwrap();
    let layer = LayerProfile::new("one", LayerTimes::new(time, time, time));
    let profile = Profile::new("cpu", 1, vec![layer]).unwrap().to_json();
    let error = Plan::from_json(&profile, "p.json").unwrap_err().to_string();
    assert!(error.contains("it is a profile, not a plan"), "{error}");
    let plan = sample().to_json();
    let error = Profile::from_json(&plan, "q.json").unwrap_err().to_string();
    assert!(error.contains("it is a plan, not a profile"), "{error}");
    // A schedule begins like a JSON number.
    for none in ["0F0,0B0\n", "{}", "[]", ""] {
        let error = Plan::from_json(none, "p.json").unwrap_err().to_string();
        assert!(
            error.ends_with("it is no plan: `gpipe-rs plan` makes those"),
            "{error}"
        );
    }
}
