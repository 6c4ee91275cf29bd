//! Tests of the page about a profile and its plan.

use crate::page_support::{check, content};
use gpipe_partitioner::render::{PageError, ProfilePage};
use gpipe_partitioner::{
    Bytes, LayerProfile, LayerTimes, Machine, Micros, Neighbours, Plan, PlanOptions, Profile,
    ScheduleKind, Spread, When, plan,
};

fn layer(name: &str, time: f64) -> LayerProfile {
    let [f, i, w] = [time, 1.25 * time, 0.75 * time].map(|time| Micros::new(time).unwrap());
    let mut times = LayerTimes::new(f, i, w);
    times.backward = Some(f * 1.8);
    LayerProfile::new(name, times)
        .with_bytes(Bytes(3 << 20), Bytes(8 << 20), Bytes(1 << 20))
        .with_temporary(Bytes(2 << 20))
        .with_spread(Spread::new(9, 0.05, 0.02))
}

fn profile(names: &[String]) -> Profile {
    let layers = names
        .iter()
        .zip(1..)
        .map(|(name, n)| layer(name, f64::from(1000 + 100 * (n % 5))));
    Profile::new("cpu", 4, layers.collect())
        .unwrap()
        .with_origin(Some("2.11.0".into()), Some("medians of 9 runs".into()))
}

fn named(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("block.{n}")).collect()
}

fn options(devices: usize, memory: Option<&str>) -> PlanOptions {
    let machine = Machine::new(devices)
        .unwrap()
        .with_link("2GB/s,30us".parse().unwrap());
    PlanOptions::new(match memory {
        Some(memory) => machine.with_memory(&[memory.parse().unwrap()]).unwrap(),
        None => machine,
    })
}

fn page(profile: &Profile, options: &PlanOptions) -> (Plan, String) {
    let plan = plan(profile, options).unwrap();
    let page = ProfilePage::new("gpt", profile, &plan, options).unwrap();
    let html = page
        .with_limit("compute-bound: devices compute 94 % of the step")
        .with_doubts(vec!["layer `block.0` is noisy".into()])
        .with_about("12 layers of 256 & more")
        .html();
    check(&html);
    (plan, html)
}

#[test]
fn it_looks_as_it_did() {
    let mut options = options(2, Some("256MiB"));
    options.schedule = Some(ScheduleKind::ZbH1);
    options.micro_batches = Some(3);
    let (_, html) = page(&profile(&named(4)), &options);
    insta::assert_snapshot!("profile-zb-h1", content(&html));
}

#[test]
fn everything_is_told_without_a_picture() {
    let mut options = options(2, Some("256MiB"));
    options.micro_batches = Some(8);
    let (plan, html) = page(&profile(&named(6)), &options);
    // Non-breaking spaces join numbers to their units.
    let html = html.replace('\u{a0}', " ");
    for heading in [
        "Layers and cuts",
        "Predicted timeline",
        "Memory over time",
        "Schedules compared",
        "Doubts",
    ] {
        assert!(html.contains(&format!(">{heading}</h2>")), "{heading}");
    }
    assert!(html.contains("<strong>Compute-bound</strong>: devices compute 94 % of the step."));
    assert!(
        html.contains("layer <code>block.0</code> is noisy")
            && html.contains("12 layers of 256 &amp; more")
    );
    assert!(html.contains("data-k=\"spread\">\u{b1} 2 %</td>"));
    assert!(html.contains(&format!("<dd>{}</dd>", plan.step)));
    for layer in named(6) {
        assert!(
            html.contains(&format!("scope=\"row\">{layer}</th>")),
            "{layer}"
        );
    }
    let cuts = plan.partition.stages() - 1;
    assert_eq!(html.matches(">cut: ").count(), cuts);
    assert_eq!(html.matches("scope=\"rowgroup\"").count(), cuts + 1);
    for (device, peak) in plan.peak_bytes.iter().enumerate() {
        let said = format!("device {device}: ");
        assert!(
            html.contains(&said) && html.contains(&format!("at most {peak} at ")),
            "{peak}"
        );
    }
    // Every schedule that was tried, with its needs.
    assert_eq!(
        html.matches("<tr role=\"row\" class=\"best\">").count(),
        1,
        "the plan is marked"
    );
    let fastest = &plan.alternatives[0];
    assert!(html.contains(&fastest.reason));
    let peak = fastest.peak_bytes.iter().max().unwrap();
    assert!(html.contains(&format!("{peak}<span class=\"bar\"")));
}

#[test]
fn names_from_outside_are_harmless() {
    let evil = "</td><script>alert('&\"')</script>".to_owned();
    let mut names = named(5);
    names[0].clone_from(&evil);
    names[2] = "a rather long name.".repeat(30);
    // A cut directly after the layer with the malicious name shows the name, too.
    let profile = Profile::new(
        "<b>cpu",
        4,
        names.iter().map(|name| layer(name, 500.0)).collect(),
    );
    let profile = profile
        .unwrap()
        .with_origin(Some("<i>".into()), Some("<img src=x>".into()));
    let options = options(5, None);
    let plan = plan(&profile, &options).unwrap();
    let html = ProfilePage::new(&evil, &profile, &plan, &options)
        .unwrap()
        .with_limit(evil.clone())
        .with_doubts(vec![evil.clone()])
        .html();
    check(&html);
    assert!(!html.contains("<script>alert") && !html.contains("<img") && !html.contains("<b>cpu"));
    assert!(html.contains("&lt;/td&gt;&lt;script&gt;alert(&#39;&amp;&quot;&#39;)"));
}

#[test]
fn it_is_readable_for_one_layer_and_for_very_many() {
    let (_, one) = page(&profile(&named(1)), &options(1, None));
    assert!(!one.contains(">cut: "));
    let (_, many) = page(&profile(&named(300)), &options(4, None));
    assert!(many.contains("class=\"scroll layers tall\""));
    assert!(many.contains("aria-label=\"Time of each layer, with the cuts\""));
    assert!(many.contains(">block.299</th>"));
    let mut few = options(2, None);
    few.schedule = Some(ScheduleKind::OneFOneB);
    few.micro_batches = Some(2);
    let (_, most) = page(&profile(&named(5000)), &few);
    assert!(most.contains("block.0 \u{2026} block.4 (5 layers)"));
    assert!(most.len() < 2_000_000, "{}", most.len());
}

#[test]
fn a_timeline_that_nobody_could_read_is_not_drawn() {
    let mut options = options(8, None);
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(4000);
    let (_, html) = page(&profile(&named(8)), &options);
    assert!(html.contains("64000 actions are too many for a picture"));
    assert!(!html.contains("id=\"chart\""));
    // Pictures share the colours, which are in the timeline otherwise.
    assert!(html.contains("id=\"kF\"") && html.contains(".tl .ground{"));
}

#[test]
fn recompute_and_tight_memory_are_shown() {
    let mut options = options(2, Some("110MiB"));
    options.schedule = Some(ScheduleKind::OneFOneB);
    options.micro_batches = Some(4);
    options.recompute = When::Always;
    let (plan, html) = page(&profile(&named(6)), &options);
    assert_eq!(plan.recompute, [true, true]);
    assert_eq!(html.matches("recomputes its forward").count(), 2);
    assert!(html.contains(">limit 110.0 MiB</text>"));
}

#[test]
fn a_plan_for_something_else_is_refused() {
    let (long, short) = (profile(&named(6)), profile(&named(5)));
    let two = options(2, None);
    let planned = plan(&long, &two).unwrap();
    let error = ProfilePage::new("x", &short, &planned, &two).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plan is for 6 layers, not 5: it was made from another profile"
    );
    let error = ProfilePage::new("x", &long, &planned, &options(3, None)).unwrap_err();
    assert!(matches!(
        error,
        PageError::Other {
            what: "devices",
            ..
        }
    ));
}

/// Regression: the page of a plan for a cluster showed the profiled device.
#[test]
fn cards_that_are_planned_for_stand_in_place_of_the_profiled_device() {
    let profile = profile(&named(6));
    let options = options(2, None);
    let plan = plan(&profile, &options).unwrap();
    let page = || ProfilePage::new("x", &profile, &plan, &options).unwrap();
    let own = format!("<dd>2 \u{d7} {}", profile.device());
    assert!(page().html().contains(&own));
    let html = page().with_cards("2 cards of <a & b>").html();
    check(&html);
    assert!(html.contains("<dd>2 cards of &lt;a &amp; b&gt;") && !html.contains(&own));
}

/// Layouts are distinguished if there are several, and so are neighbours.
#[test]
fn runners_up_of_other_layouts_say_which() {
    let profile = profile(&named(6));
    let options = options(2, None);
    let mut plan = plan(&profile, &options).unwrap();
    let page = |plan: &Plan| {
        let html = ProfilePage::new("x", &profile, plan, &options).unwrap();
        let html = html
            .with_notes(vec!["98 of 128 `cards` <idle>".into()])
            .html();
        check(&html);
        html
    };
    assert!(!page(&plan).contains("replicas \u{d7} devices"));
    let other = &mut plan.alternatives[0];
    (other.replicas, other.devices) = (2, 3);
    other.neighbours = match plan.neighbours {
        Neighbours::Stages => Neighbours::Replicas,
        Neighbours::Replicas => Neighbours::Stages,
    };
    let html = page(&plan);
    assert!(html.contains(">2 \u{d7} 3</td>") && html.contains(">1 \u{d7} 2</td>"));
    let next = plan.alternatives[0].neighbours.name();
    assert!(html.contains(&format!("; next to each other are {next}</td>")));
    assert!(html.contains("<p>98 of 128 <code>cards</code> &lt;idle&gt;.</p>"));
}
