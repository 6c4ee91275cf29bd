//! Checks that the timeline pictures equal the renderer's output; `make pages` rewrites them.
//! `data-parallel.svg` is drawn by hand, as no pipeline schedule has it.

use std::fs;

use gpipe_partitioner::{
    CheckedSchedule, Costs, Micros, ScheduleKind, Shape, StageId, auto, render, simulate,
};

use crate::pages::{all, src, targets};

const DEVICES: usize = 4;
const MICRO_BATCHES: usize = 8;

fn ms(time: f64) -> Micros {
    Micros::new(1000.0 * time).unwrap()
}

/// A millisecond per pass over a device's layers, whatever its chunks.
pub(crate) fn costs(shape: Shape) -> Costs {
    let pass = ms(1.0 / shape.chunks as f64);
    Costs::uniform(shape.stages(), pass, pass, pass)
}

/// The shape in which the book shows a schedule.
pub(crate) fn shape(kind: ScheduleKind) -> Shape {
    let chunks = if kind == ScheduleKind::Auto {
        2
    } else {
        kind.default_chunks()
    };
    Shape::new(DEVICES, MICRO_BATCHES).with_chunks(chunks)
}

fn drawn(schedule: &CheckedSchedule, costs: &Costs) -> String {
    render::svg(&simulate(schedule, costs).timeline)
}

fn pictures() -> Vec<(String, String)> {
    let mut made = Vec::new();
    let mut add = |name: &str, svg: String| made.push((format!("{name}.svg"), svg));
    for kind in ScheduleKind::ALL
        .into_iter()
        .filter(|kind| *kind != ScheduleKind::Auto)
    {
        let shape = shape(kind);
        add(
            kind.name(),
            drawn(&kind.generate(shape).unwrap(), &costs(shape)),
        );
    }
    let short = Shape::new(DEVICES, 1);
    let one = ScheduleKind::GPipe.generate(short).unwrap();
    add(
        "one-at-a-time",
        drawn(&one, &Costs::uniform(DEVICES, ms(4.0), ms(4.0), ms(4.0))),
    );
    let four = ScheduleKind::GPipe
        .generate(Shape::new(DEVICES, 4))
        .unwrap();
    add(
        "four-micro-batches",
        drawn(&four, &costs(Shape::new(DEVICES, 4))),
    );

    let shape = Shape::new(DEVICES, MICRO_BATCHES);
    let plain = ScheduleKind::OneFOneB.generate(shape).unwrap();
    let slow = costs(shape).scaled(StageId(2), 1.5);
    add("slow-stage", drawn(&plain, &slow));
    let computed = auto(shape, &slow, &[], None).unwrap().schedule;
    add("auto", drawn(&computed, &slow));
    add(
        "links",
        drawn(&plain, &costs(shape).with_transfer(ms(0.2), ms(0.1))),
    );
    let again = plain
        .schedule()
        .clone()
        .with_recomputes(|_, _| true)
        .check()
        .unwrap();
    add("recompute", drawn(&again, &costs(shape)));
    made
}

#[test]
fn every_picture_is_current_and_shown() {
    let shown: Vec<String> = all().iter().flat_map(|page| targets(&page.text)).collect();
    for (name, svg) in pictures() {
        let path = src().join("images").join(&name);
        if std::env::var_os("GPIPE_WRITE_PAGES").is_some() {
            fs::write(&path, &svg).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == svg,
            "book/src/images/{name} is not what is drawn today: run `make pages`"
        );
        let target = format!("images/{name}");
        assert!(shown.contains(&target), "no page shows {target}");
    }
}
