//! Checks that every field of written files is in the book.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpipe::partitioner::{Plan, Profile, ScheduleKind};
use serde_json::Value;

use super::{PROFILE, printed};

/// The names of all fields, except within `settings`, which users name.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| fields(entry, found)),
        Value::Object(map) => {
            for (name, value) in map {
                found.insert(name.clone());
                if name != "settings" {
                    fields(value, found);
                }
            }
        }
        _ => {}
    }
}

/// The section of the page about `what`.
fn section(what: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/files.md");
    let page = fs::read_to_string(page).unwrap();
    let start = page.find(&format!("## `{what}`")).unwrap();
    let section = &page[start..];
    let end = section[3..]
        .find("\n## ")
        .map_or(section.len(), |at| at + 3);
    section[..end].to_owned()
}

#[track_caller]
fn documented(what: &str, text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields(&serde_json::from_str(text).unwrap(), &mut found);
    let section = section(what);
    for field in &found {
        let named = [format!("`{field}`"), format!(".{field}`")];
        assert!(
            named.iter().any(|name| section.contains(name)),
            "the book's page files.md does not say what `{field}` in `{what}` is"
        );
    }
    found
}

#[test]
fn every_field_is_in_the_book() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let files = format!("{PROFILE} --devices cpu,cpu --json -o profile.json --plan plan.json");
    let mut all: Value = serde_json::from_str(&printed(folder, &files)).unwrap();

    // Adds fields that this model or machine leaves out.
    let profile = Profile::read(folder.join("profile.json")).unwrap();
    let copying = profile.with_link("25GB/s,5us".parse().unwrap());
    let found = documented("profile.json", &copying.to_json());
    assert!(found.contains("curve") && found.contains("repeats") && found.len() > 15);

    let mut plan = Plan::read(folder.join("plan.json")).unwrap();
    plan.computed = Some(plan.generate().unwrap().schedule().clone());
    plan.schedule = ScheduleKind::Auto;
    let found = documented("plan.json", &plan.to_json());
    assert!(found.contains("actions") && found.contains("reason"));

    for part in ["profile", "plan"] {
        all[part] = Value::Null;
    }
    documented("profile --json", &all.to_string());
}

#[test]
fn every_field_of_a_model_is_in_the_book() {
    let here = Path::new(".");
    let all = documented("models --json", &printed(here, "models --json"));
    let one = documented("models --json", &printed(here, "models gpt2 --json"));
    assert!(one.is_subset(&all) && all.contains("presets"));
}

#[test]
fn what_was_measured_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let args = format!("{PROFILE} --devices cpu,cpu --json -o profile.json");
    let told: Value = serde_json::from_str(&printed(folder.path(), &args)).unwrap();
    let profile = Profile::read(folder.path().join("profile.json")).unwrap();
    let link = profile.link().unwrap();
    assert_eq!(
        told["link"]["latency_us"].as_f64(),
        Some(link.latency().get())
    );
    assert_eq!(
        link.bandwidth(),
        None,
        "nothing is copied between CPU devices"
    );
    for (layer, told) in profile
        .layers()
        .iter()
        .zip(told["spread"].as_array().unwrap())
    {
        let spread = layer.spread.unwrap();
        assert_eq!(told["repeats"].as_u64(), Some(spread.repeats() as u64));
        assert_eq!(told["forward_spread"].as_f64(), Some(spread.forward()));
        assert_eq!(told["backward_spread"].as_f64(), Some(spread.backward()));
    }
    let alone = printed(folder.path(), &format!("{PROFILE} --devices cpu -o -"));
    assert_eq!(Profile::from_json(alone, "-").unwrap().link(), None);
}
