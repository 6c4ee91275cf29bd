//! Tests of golden renderings.

use crate::page_support;
use gpipe_partitioner::render::StepMemory;
use gpipe_partitioner::simulate::MemoryLevel;
use gpipe_partitioner::{
    Bytes, Costs, EdgeTimes, Explanation, LayerProfile, LayerTimes, Machine, Micros, PlanOptions,
    Profile, ScheduleKind, Shape, Span, StageId, StageMemory, Timeline, explain, plan, render,
    simulate,
};
use std::collections::HashSet;

fn timeline(kind: ScheduleKind, p: usize, v: usize, m: usize) -> Timeline {
    let shape = Shape::new(p, m).with_chunks(v);
    let [f, i, w] = [1000.0, 1200.0, 800.0].map(|t| Micros::new(t).unwrap());
    let schedule = kind.generate(shape).unwrap();
    simulate(&schedule, &Costs::uniform(shape.stages(), f, i, w)).timeline
}

#[test]
fn text() {
    insta::assert_snapshot!(
        "text-1f1b",
        render::text(&timeline(ScheduleKind::OneFOneB, 4, 1, 6), 100)
    );
    insta::assert_snapshot!(
        "text-zbv",
        render::text(&timeline(ScheduleKind::Zbv, 3, 2, 5), 120)
    );
}

#[test]
fn text_keeps_to_its_width() {
    for width in [0, 20, 40, 80, 200, 1_000_000] {
        let text = render::text(&timeline(ScheduleKind::OneFOneB, 12, 1, 40), width);
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest <= width.clamp(20, 10_000), "{longest} > {width}");
        // Regression: the key was left out where it did not fit one line.
        assert!(
            text.lines().count() >= 12 + 2 && text.contains("B< backward"),
            "{text}"
        );
    }
}

#[test]
fn svg() {
    insta::assert_snapshot!(
        "svg-zb-h1",
        render::svg(&timeline(ScheduleKind::ZbH1, 2, 1, 3))
    );
}

#[test]
fn html() {
    let page = render::html(&timeline(ScheduleKind::OneFOneB, 2, 1, 2), "1f1b <2 & 2>");
    page_support::check(&page);
    assert!(!page.contains("<2 & 2>") && !page.contains("all-reduce"));
    insta::assert_snapshot!("html-1f1b", page_support::content(&page));
}

/// Regression: the two chunks of a device looked the same.
#[test]
fn chunks_have_shades_and_each_device_says_which_stages_it_has() {
    let svg = render::svg(&timeline(ScheduleKind::Zbv, 4, 2, 8));
    for (stage, shade) in [(0, 0), (7, 1), (3, 0), (4, 1)] {
        let bar = format!("<g class=\"F c{shade}\"><title>{stage}F0: ");
        assert!(svg.contains(&bar), "{bar}");
    }
    assert!(svg.contains(">chunks 0, 1</text>"));
    assert!(svg.contains(">stages 0, 7</text>") && svg.contains(">stages 3, 4</text>"));
    // Names include the stage, or are omitted.
    assert!(svg.contains(">4F0</text>") && !svg.contains(">F0</text>"));

    let one = render::svg(&timeline(ScheduleKind::OneFOneB, 4, 1, 8));
    assert!(!one.contains("chunks") && !one.contains("stages 0"));

    let many = render::svg(&timeline(ScheduleKind::Interleaved1F1B, 2, 7, 4));
    assert!(many.contains(">chunks 0 to 6</text>") && many.contains(">7 stages</text>"));
    assert!(many.contains("class=\"F c5\"") && !many.contains("class=\"F c6\""));
}

/// Regression: B9 had large digits and B10 none.
#[test]
fn names_of_a_kind_have_one_size() {
    let svg = render::svg(&timeline(ScheduleKind::OneFOneB, 8, 1, 32));
    assert!(svg.contains(">B31</text>"));
    let of_backward = svg.lines().filter(|line| line.contains(">B"));
    assert!(of_backward.clone().count() > 100);
    for line in of_backward {
        assert!(line.contains("<text class=\"s\""), "{line}");
    }
}

/// Regression: in bars of 19 pixels W12 and W13 almost touched, and a legend's width assumed wide
/// letters only.
#[test]
fn names_and_legends_have_room_around_them() {
    let svg = render::svg(&timeline(ScheduleKind::ZbH1, 4, 1, 14));
    let bar = |name: &str| svg.lines().find(|line| line.contains(name)).unwrap();
    assert!(bar(">W13</text>").contains("<text class=\"t\""));
    let key = |name: &str| -> f64 {
        let (before, _) = svg.split_once(&format!("\" y=\"19\">{name}")).unwrap();
        before.rsplit_once('"').unwrap().1.parse().unwrap()
    };
    let [f, i, w] = ["forward (F)", "input gradient (I)", "weight gradient (W)"].map(key);
    // The first name has a larger share of narrow letters.
    let each = [(i - f, "forward (F)"), (w - i, "input gradient (I)")]
        .map(|(width, name)| (width - 37.0) / name.len() as f64);
    assert!(each[1] < each[0] && each[0] < 6.7, "{each:?}");
}

/// Regression: `F0` was next to `0B0`, and one row had names of three sizes.
#[test]
fn names_of_a_picture_have_one_form_and_one_size() {
    for (kind, chunks) in [(ScheduleKind::ZbH1, 1), (ScheduleKind::Zbv, 2)] {
        let svg = render::svg(&timeline(kind, 4, chunks, 14 / chunks));
        let mut sizes = HashSet::new();
        for line in svg.lines().filter(|line| line.ends_with("</g>")) {
            let Some((_, text)) = line.split_once("<text") else {
                continue;
            };
            let (class, _) = text.split_once(" x=").unwrap();
            sizes.insert(class);
            let name = text.split_once('>').unwrap().1;
            let has_stage = name.starts_with(|c: char| c.is_ascii_digit());
            assert_eq!(has_stage, chunks > 1, "{name}");
        }
        assert_eq!(sizes.len(), 1, "{sizes:?}");
    }
}

/// Regression: bars of two pixels showed only their strokes.
#[test]
fn narrow_bars_have_no_stroke() {
    let svg = render::svg(&timeline(ScheduleKind::Interleaved1F1B, 16, 6, 32));
    let mut narrow = 0;
    for line in svg.lines().filter(|line| line.contains("</g>")) {
        let (_, rect) = line.split_once("<rect").unwrap();
        let (_, width) = rect.split_once(" width=\"").unwrap();
        let width: f64 = width.split('"').next().unwrap().parse().unwrap();
        assert_eq!(rect.starts_with(" class=\"n\""), width < 3.0, "{rect}");
        narrow += usize::from(width < 3.0);
    }
    assert!(narrow > 1000, "{narrow}");
}

#[test]
fn the_page_of_a_simulation_has_its_memory_with_units_where_there_is_any() {
    let shape = Shape::new(4, 8);
    let schedule = ScheduleKind::OneFOneB.generate(shape).unwrap();
    let unit = Micros::new(1000.0).unwrap();
    let memory = StageMemory {
        activation: Bytes(3 << 20),
        ..StageMemory::default()
    };
    let costs = Costs::uniform(4, unit, unit, unit);
    let page = render::SimulationPage::new(&simulate(&schedule, &costs), "1f1b").html();
    page_support::check(&page);
    assert!(!page.contains("Memory over time"));
    let costs = (0..4).fold(costs, |costs, s| costs.with_memory(StageId(s), memory));
    let page = render::SimulationPage::new(&simulate(&schedule, &costs), "1f1b").html();
    page_support::check(&page);
    assert!(page.contains("<dt>Peak memory</dt><dd>12.0\u{a0}MiB</dd>"));
    assert!(page.contains("on device 0"));
    assert!(page.contains("device 3: at most 3.0 MiB at 3.00 ms"));
}

#[test]
fn trace() {
    insta::assert_snapshot!(
        "trace-zb-h1",
        render::chrome_trace(&timeline(ScheduleKind::ZbH1, 2, 1, 2))
    );
}

/// Two stages on each of two devices, whose gradients take as long as a micro-batch; those of the
/// higher stage are in transfer while the device still runs the lower one.
fn replicas() -> Timeline {
    let shape = Shape::new(2, 4).with_chunks(2);
    let [f, i, w] = [1000.0, 1200.0, 800.0].map(|t| Micros::new(t).unwrap());
    let schedule = ScheduleKind::Interleaved1F1B.generate(shape).unwrap();
    let all_reduce = EdgeTimes {
        occupancy: Micros::new(2800.0).unwrap(),
        latency: Micros::new(200.0).unwrap(),
    };
    let costs = Costs::uniform(4, f, i, w);
    let costs = (0..4).fold(costs, |c, s| c.with_exchange(StageId(s), all_reduce));
    simulate(&schedule, &costs).timeline
}

#[test]
fn the_exchange_of_gradients_is_drawn() {
    let timeline = replicas();
    insta::assert_snapshot!("replicas-text", render::text(&timeline, 100));
    let unit = Micros::new(1000.0).unwrap();
    insta::assert_snapshot!("replicas-grid", render::grid(&timeline, unit));
    insta::assert_snapshot!("replicas-svg", render::svg(&timeline));
    insta::assert_snapshot!("replicas-trace", render::chrome_trace(&timeline));
    let page = render::html(&timeline, "replicas");
    page_support::check(&page);
    assert!(page.contains("Exposed all-reduce"));
}

#[test]
fn an_empty_timeline_can_be_drawn() {
    let empty = Timeline::new(2, vec![]);
    for text in [
        render::text(&empty, 80),
        render::svg(&empty),
        render::html(&empty, "empty"),
        render::chrome_trace(&empty),
    ] {
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}

/// Returns a step whose stage 1 is slow, whose first action is slower still, and whose starts are
/// late.
fn comparison() -> Explanation {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4)).unwrap();
    let [f, b, late] = [1000.0, 1000.0, 30.0].map(|t| Micros::new(t).unwrap());
    let costs = Costs::uniform(2, f, b, b);
    let timeline = simulate::replay(&schedule, &costs, |action| {
        let usual = costs.stage(action.stage).of(action.kind);
        let factor = match action.to_string().as_str() {
            "0F0" => 1.5,
            name if name.starts_with("1B") => 1.2,
            _ => 1.0,
        };
        usual * factor + late
    });
    let shortened = timeline.spans().iter().map(|span| Span {
        start: span.start + late,
        ..*span
    });
    let measured = Timeline::new(2, shortened.collect());
    explain(&simulate(&schedule, &costs), &measured).unwrap()
}

#[test]
fn compare_text() {
    let text = render::compare_text(&comparison(), "Step 3", 100);
    insta::assert_snapshot!("compare-text", text);
    for width in [0, 20, 40, 80, 200, 1_000_000] {
        let text = render::compare_text(&comparison(), "Step 3", width);
        // A table narrower than its numbers would be useless.
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest <= width.clamp(38, 10_000), "{longest} > {width}");
    }
}

/// Regression: `f`, `r`, `i` and `w` of a device's second stage were in no legend.
#[test]
fn small_letters_of_a_comparison_are_in_its_legend() {
    let schedule = ScheduleKind::Zbv
        .generate(Shape::new(2, 8).with_chunks(2))
        .unwrap();
    let unit = Micros::new(1000.0).unwrap();
    let prediction = simulate(&schedule, &Costs::uniform(4, unit, unit, unit));
    let explanation = explain(&prediction, &prediction.timeline).unwrap();
    let text = render::compare_text(&explanation, "Step 3", 80);
    let mut rows = text.lines().filter_map(|line| line.split_once('|'));
    assert!(rows.any(|(_, row)| row.contains('f')), "{text}");
    assert!(
        text.contains("lower case: later stages of the device"),
        "{text}"
    );
    // With room for their names there are none.
    let text = render::compare_text(&explanation, "Step 3", 1000);
    assert!(
        text.contains("2F0 forward of micro-batch 0 on stage 2"),
        "{text}"
    );
}

#[test]
fn compare_svg() {
    insta::assert_snapshot!(
        "compare-svg",
        render::compare_svg(&comparison(), "Step <3>")
    );
}

#[test]
fn compare_html() {
    let page = render::compare_html(&comparison(), "Step <3>", "1f1b <2 & 2>");
    assert!(!page.contains("<2 & 2>") && !page.contains("Step <3>"));
    page_support::check(&page);
    insta::assert_snapshot!("compare-html", page_support::content(&page));
}

/// Regression: a good verdict was in the box of warnings.
#[test]
fn a_comparison_warns_of_nothing_but_warnings() {
    let explanation = comparison();
    let page = render::ComparePage::new(&explanation, "Step 3", "measured");
    let page = page
        .with_notes(vec!["compute-bound".to_owned()])
        .with_warnings(vec!["contended".to_owned()])
        .html();
    page_support::check(&page);
    assert!(
        page.contains("<div class=\"say\">\n<p>Compute-bound.</p>"),
        "{page}"
    );
    assert!(
        page.contains("<p class=\"say warn\">Contended.</p>"),
        "{page}"
    );
}

#[test]
fn a_comparison_tells_what_the_plan_said_and_what_memory_did() {
    let explanation = comparison();
    let level = |time: f64, bytes| MemoryLevel {
        time: Micros::new(time).unwrap(),
        bytes: Bytes(bytes),
    };
    let memory = StepMemory {
        levels: vec![level(0.0, 0), level(1000.0, 8 << 20), level(4000.0, 0)],
        held: Bytes(9 << 20),
        peak: Bytes(12 << 20),
    };
    let time = Micros::new(1000.0).unwrap();
    let layers =
        (0..4).map(|n| LayerProfile::new(format!("{n}"), LayerTimes::new(time, time, time)));
    let profile = Profile::new("cpu", 4, layers.collect()).unwrap();
    let plan = plan(&profile, &PlanOptions::new(Machine::new(2).unwrap())).unwrap();
    let page = render::ComparePage::new(&explanation, "Step 3", "measured")
        .with_plan(&plan)
        .with_memory(vec![memory.clone(), memory])
        .html();
    page_support::check(&page);
    // Names of rows stay in view with the peaks; numbers keep their units.
    let memory = page.split("<svg class=\"side\"").nth(2).unwrap();
    assert!(memory.contains(">device 1</tspan><tspan dx=\"12\">predicted 8.0 MiB at "));
    let page = page.replace('\u{a0}', " ");
    assert!(page.contains(&format!("<dt>The plan said</dt><dd>{}</dd>", plan.step)));
    assert!(page.contains("device 1: at most 8.0 MiB at 1.00 ms, measured held 9.0 MiB"));
    for number in [">8.0 MiB</td>", ">9.0 MiB</td>", ">12.0 MiB</td>"] {
        assert_eq!(page.matches(number).count(), 2, "{number}");
    }
}
