//! Checks that figures in the book's tables match the library, quoted errors are in the source, and code
//! shown from an example is the example's.

use std::fs;
use std::path::Path;

use gpipe_partitioner::{
    Costs, DeviceId, Machine, Micros, Nodes, PlanOptions, Profile, ScheduleKind, Shape, When, plan,
    simulate,
};

use crate::pages::{root, src};
use crate::pictures::{costs, shape};

fn page(name: &str) -> String {
    fs::read_to_string(src().join(name)).unwrap()
}

/// The largest number of micro-batches in flight, without superfluous digits.
fn in_flight(schedule: &gpipe_partitioner::CheckedSchedule) -> String {
    let devices = (0..schedule.schedule().devices()).map(DeviceId);
    let peak = devices
        .map(|device| schedule.peak_in_flight_on(device))
        .fold(0.0, f64::max);
    format!("{peak}")
}

#[test]
fn the_table_of_schedules_is_what_is_simulated() {
    let page = page("schedules.md");
    for kind in ScheduleKind::ALL {
        let shape = shape(kind);
        let schedule = kind.generate(shape).unwrap();
        let timeline = simulate(&schedule, &costs(shape)).timeline;
        let row = format!(
            "| `{kind}` | {} | {} | {:.1} % | {} |",
            shape.chunks,
            timeline.makespan(),
            100.0 * timeline.bubble_fraction(),
            in_flight(&schedule)
        );
        assert!(page.contains(&row), "schedules.md lacks\n{row}");
    }
}

#[test]
fn the_table_of_bubbles_is_what_is_simulated() {
    let page = page("pipelines.md");
    let unit = Micros::new(1.0).unwrap();
    for m in [1, 4, 8, 16, 32, 64] {
        let bubble = |p| {
            let schedule = ScheduleKind::OneFOneB.generate(Shape::new(p, m)).unwrap();
            let timeline = simulate(&schedule, &Costs::uniform(p, unit, unit, unit)).timeline;
            format!("{:.1} %", 100.0 * timeline.bubble_fraction())
        };
        let row = format!("| {m} | {} | {} | {} |", bubble(2), bubble(4), bubble(8));
        assert!(page.contains(&row), "pipelines.md lacks\n{row}");
    }
}

/// The step time that `plan` finds for the example's GPT on eight devices under 1F1B.
fn step_over(nodes: usize, link: &str, replicas: usize) -> String {
    let profile = Profile::read(root().join("examples/data/profiles/gpt.json")).unwrap();
    let machine = Machine::new(8 / replicas)
        .unwrap()
        .with_speeds(&[100.0])
        .unwrap();
    let machine = machine.with_link("25GB/s,10us".parse().unwrap());
    let nodes = Nodes::even(nodes, 8, link.parse().unwrap()).unwrap();
    let machine = machine
        .with_replicas(replicas)
        .unwrap()
        .with_nodes(nodes)
        .unwrap();
    let mut options = PlanOptions::new(machine);
    options.micro_batches = Some(32);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.chunks = Some(1);
    options.recompute = When::Never;
    plan(&profile, &options).unwrap().step.to_string()
}

#[test]
fn the_tables_of_nodes_are_what_is_planned() {
    let page = page("clusters.md");
    let links = ["100Gbit/s,50us", "25Gbit/s,50us", "1Gbit/s,50us"];
    let has = |first: usize, step: &dyn Fn(&str) -> String| {
        let row = format!("| {first} | {} |", links.map(step).join(" | "));
        assert!(page.contains(&row), "clusters.md lacks\n{row}");
    };
    for nodes in [1, 2, 4] {
        has(nodes, &|link| step_over(nodes, link, 1));
    }
    for replicas in [1, 2, 4, 8] {
        has(replicas, &|link| step_over(2, link, replicas));
    }
}

/// All source text, with multi-line strings joined.
fn source() -> String {
    let mut all = String::new();
    let mut folders = vec![root().join("src"), root().join("partitioner/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|kind| kind == "rs" || kind == "cpp" || kind == "py")
            {
                all += &joined(&path);
            }
        }
    }
    all
}

fn joined(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.trim_start())
}

/// Messages of other programs.
const FOREIGN: [&str; 2] = [
    "torch/torch.h: No such file",
    "error while loading shared libraries",
];

#[test]
fn every_error_that_is_quoted_is_in_the_source() {
    let source = source();
    let mut seen = 0;
    let page = page("errors.md");
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let quoted = line.split('`').nth(1).unwrap();
        if FOREIGN.iter().any(|foreign| quoted.starts_with(foreign)) {
            continue;
        }
        seen += 1;
        for part in quoted
            .split('…')
            .map(|part| part.trim_matches(|c: char| " `".contains(c)))
        {
            if part.len() >= 8 {
                assert!(
                    source.contains(part),
                    "no error says `{part}` any more: {line}"
                );
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn the_schedule_of_the_example_is_that_of_the_book() {
    let example = fs::read_to_string(root().join("examples/custom_schedule.rs")).unwrap();
    let start = example.find("/// Stage s of p").unwrap();
    let end = start + example[start..].find("\n}\n").unwrap() + 2;
    let page = page("add-schedule.md");
    assert!(
        page.contains(&example[start..end]),
        "add-schedule.md and examples/custom_schedule.rs"
    );
    assert!(example.lines().count() < 60);
}

#[test]
fn the_text_says_what_the_pictures_say() {
    let text = page("parallelism.md");
    assert!(text.contains("The first takes 48 ms, the\nsecond 21 ms."));
    for (picture, step) in [
        ("one-at-a-time", "step 48.00 ms"),
        ("four-micro-batches", "step 21.00 ms"),
    ] {
        assert!(
            page(&format!("images/{picture}.svg")).contains(step),
            "{picture}"
        );
    }
}
