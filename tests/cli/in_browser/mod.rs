//! The pages of a simulation, of a comparison and of a profile, and the book's playground, opened in
//! a real browser where one is installed.

mod browser;
mod playground;
mod profile;

use crate::run::{gpipe, succeeded};
use browser::{audited, between, browser, open};
use gpipe_partitioner::render::SimulationPage;
use gpipe_partitioner::{
    ActionKind, Bytes, Costs, Micros, ScheduleKind, Shape, StageId, StageMemory, explain, render,
    simulate,
};
use std::fs;
use std::process::Command;

#[test]
fn the_page_renders_and_its_script_runs() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("zbv.html");
    let status = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
        .args([
            "simulate",
            "--schedule",
            "zbv",
            "--devices",
            "4",
            "--micro",
            "8",
            "--format",
            "html",
            "-o",
        ])
        .arg(&page)
        .status();
    assert!(status.unwrap().success());
    let dom = audited(browser, folder.path(), &page);
    // Details of all actions (each of 8 stages has F, I, W or F, B per micro-batch), and a legend.
    let actions = dom.matches("<title>").count() - 1;
    assert!((8 * 8 * 2..=8 * 8 * 3).contains(&actions), "{actions}");
    assert!(dom.contains("0F0: forward (F), stage 0, micro-batch 0"));
    for kind in ["forward (F)", "input gradient (I)", "weight gradient (W)"] {
        assert!(dom.contains(&format!("</svg>{kind}</li>")), "{kind}");
    }
    assert!(dom.contains("<dt>Step</dt><dd>25.50&nbsp;ms</dd>"));
    assert!(dom.contains("<dt>Bubble</dt><dd>5.9&nbsp;%</dd>"));
    assert!(dom.contains("<output id=\"detail\" class=\"detail\">Point at an action, or press an arrow key in the picture: its times are shown here.</output>"));

    // The same page with the pointer on its first action.
    let point = "<script>document.querySelector('svg g rect').dispatchEvent(\
                 new MouseEvent('mousemove',{bubbles:true}))</script></body>";
    let pointed = fs::read_to_string(&page).unwrap().replace("</body>", point);
    fs::write(&page, pointed).unwrap();
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    let detail = between(&dom, "<output id=\"detail\" class=\"detail\">", "</output>");
    let wanted = "0F0: forward (F), stage 0, micro-batch 0\n0.0 µs to 500.0 µs (500.0 µs)";
    assert_eq!(detail, wanted, "{log}");
}

/// Regression test: 1536 actions were unreadable.
#[test]
fn a_timeline_can_be_zoomed_by_buttons_keys_and_wheel() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("zbv.html");
    let shape = Shape::new(8, 32).with_chunks(2);
    let schedule = ScheduleKind::Zbv.generate(shape).unwrap();
    let half = Micros::new(500.0).unwrap();
    let simulation = simulate(&schedule, &Costs::uniform(16, half, half, half));
    let html = render::html(&simulation.timeline, "zbv");
    let opened = |acts: &str| {
        let script = format!(
            "<script>var chart=document.getElementById('chart');function rect(n){{return \
             document.querySelectorAll('svg g rect')[n].getAttribute('x')}}\
             function press(key){{chart.dispatchEvent(new KeyboardEvent('keydown',{{key:key}}));}}\
             {acts};document.body.dataset.seen=[chart.dataset.zoom,chart.scrollWidth>2*chart.clientWidth,\
             document.querySelectorAll('svg g text').length,Math.round(rect(1))].join(' ')</script></body>"
        );
        fs::write(&page, html.replace("</body>", &script)).unwrap();
        let (dom, log) = open(browser, folder.path(), &page, &[]);
        assert!(!log.contains("CONSOLE"), "{log}");
        (between(&dom, "data-seen=\"", "\"").to_owned(), dom)
    };
    // Device 0's second action begins at 500 us of 99.5 ms: 70 + 1120 * 0.5 / 99.5.
    assert_eq!(opened("").0, " false 0 76");
    let click = "document.querySelector('[data-step=\"+\"]').click()";
    assert_eq!(opened(&format!("{click};{click}")).0, "4 true 960 93");
    // Zoomed four times, short names fit; zoomed eight times, all do, and the axis has finer ticks.
    let (seen, dom) = opened("press('+');press('=');press('+')");
    assert_eq!(seen, "8 true 1536 115");
    for text in [
        ">15F31</text>",
        ">0W31</text>",
        ">22 ms</text>",
        ">98 ms</text>",
    ] {
        assert!(dom.contains(text), "{text}");
    }
    assert_eq!(opened("press('+');press('-')").0, "1 false 0 76");
    assert_eq!(opened("press('+');press('+');press('0')").0, "1 false 0 76");
    assert_eq!(opened(&"press('+');".repeat(9)).0, "64 true 1536 430");
    // The wheel scrolls unless Ctrl is held; zooming keeps the point under the pointer in place.
    let wheel = "function wheel(ctrl){chart.dispatchEvent(new WheelEvent('wheel',{deltaY:-400,\
                 ctrlKey:ctrl,clientX:400,cancelable:true}))};";
    assert_eq!(opened(&format!("{wheel}wheel(false)")).0, " false 0 76");
    let (seen, _) = opened(&format!("{wheel}wheel(true)"));
    assert!(seen.starts_with("7.38"), "{seen}");
    let time_at_400 = "function at(){var s=document.querySelector('#chart>svg'),b=s.getBoundingClientRect();\
                       var x=(400-b.left)*s.viewBox.baseVal.width/b.width;\
                       return Math.round((x-70)/(chart.dataset.zoom||1))}";
    let held = format!(
        "{wheel}{time_at_400};var before=at();wheel(true);document.body.dataset.held=before-at()"
    );
    let (_, dom) = opened(&held);
    let moved: i32 = between(&dom, "data-held=\"", "\"").parse().unwrap();
    assert!(moved.abs() <= 1, "{moved}");
    // Device names stay in view.
    let scrolled =
        "press('+');press('+');chart.scrollLeft=1000;chart.dispatchEvent(new Event('scroll'))";
    let (_, dom) = opened(scrolled);
    let side: f64 = between(&dom, "<svg class=\"side\" aria-hidden=\"true\" x=\"", "\"")
        .parse()
        .unwrap();
    assert!(side > 900.0, "{side}");
    // A tick scrolled behind them loses its label.
    assert!(dom.contains("<path class=\"tick\" d=\"M70.00 274v5\" visibility=\"hidden\"></path>"));
    // Keys zoom around the selected action, whose frame is above all bars.
    let chosen = "press('End');press('ArrowRight');press('End');press('+');press('+');press('+');press('+');\
                  var box=chart.getBoundingClientRect(),own=document.querySelector('#chart .frame');\
                  var at=own.getBoundingClientRect();\
                  document.body.dataset.held=[at.right>box.left&&at.left<box.right,\
                  own.nextElementSibling.getAttribute('class')]";
    assert_eq!(
        between(&opened(chosen).1, "data-held=\"", "\""),
        "true,side"
    );
}

/// Regression test: in a comparison only the first timeline was readable at 32 micro-batches.
#[test]
fn every_timeline_of_a_comparison_is_zoomed_and_read_out_by_itself() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let made = "simulate --compare --devices 8 --micro 32 -o all.html";
    let made = made.split(' ').collect::<Vec<_>>();
    succeeded(gpipe(folder.path(), &made[..]), &made[..]);
    let page = folder.path().join("all.html");
    let script = "<script>var all=document.querySelectorAll('details .chart'),own=all[1],svg=own.querySelector(':scope>svg');\
                  own.parentNode.open=true;var before=svg.querySelectorAll('g text').length;\
                  own.previousElementSibling.querySelector('[data-step=\"+\"]').click();\
                  ['+','+','Home'].forEach(function(key){own.dispatchEvent(new KeyboardEvent('keydown',{key:key}))});\
                  document.body.dataset.seen=[all.length>9,own.dataset.zoom,svg.querySelectorAll('g text').length>before,\
                  own.nextElementSibling.textContent.indexOf('forward (F)')>0,\
                  document.getElementById('chart').dataset.zoom,all[0].dataset.zoom].join(' ')</script></body>";
    let html = fs::read_to_string(&page).unwrap();
    fs::write(&page, html.replace("</body>", script)).unwrap();
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    assert!(!log.contains("CONSOLE"), "{log}");
    assert_eq!(between(&dom, "data-seen=\"", "\""), "true 8 true true  ");
}

/// Regression test: names of W were larger after zooming in and out.
#[test]
fn names_are_as_before_after_a_zoom_and_back() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("zb-h1.html");
    let schedule = ScheduleKind::ZbH1.generate(Shape::new(4, 14)).unwrap();
    let [f, i, w] = [1000.0, 1200.0, 800.0].map(|t| Micros::new(t).unwrap());
    let simulation = simulate(&schedule, &Costs::uniform(4, f, i, w));
    let script = "<script>function names(){return [].map.call(document.querySelectorAll('#chart g text'),\
                  function(name){return name.textContent+' '+(name.getAttribute('class')||'')}).join()}\
                  var before=names();['+','0'].forEach(function(key){document.getElementById('chart')\
                  .dispatchEvent(new KeyboardEvent('keydown',{key:key}))});\
                  document.body.dataset.seen=[before.indexOf('W13 t')>0,before===names()]</script></body>";
    let html = render::html(&simulation.timeline, "zb-h1").replace("</body>", script);
    fs::write(&page, html).unwrap();
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    assert!(!log.contains("CONSOLE"), "{log}");
    assert_eq!(between(&dom, "data-seen=\"", "\""), "true,true");
}

/// Regression test: below a zoomed timeline, memory still covered the whole step.
#[test]
fn memory_shows_the_part_of_the_step_that_its_timeline_is_zoomed_to() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("1f1b.html");
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(4, 8)).unwrap();
    let unit = Micros::new(1000.0).unwrap();
    let memory = StageMemory {
        activation: Bytes(1 << 20),
        ..StageMemory::default()
    };
    let costs = (0..4).fold(Costs::uniform(4, unit, unit, unit), |costs, stage| {
        costs.with_memory(StageId(stage), memory)
    });
    let simulation = simulate(&schedule, &costs);
    let script = "<script>var chart=document.getElementById('chart'),memory=document.querySelectorAll('.chart')[1];\
                  function press(key){chart.dispatchEvent(new KeyboardEvent('keydown',{key:key}))}\
                  function box(of,what){return of.querySelector(':scope>svg>'+what).getBoundingClientRect()}\
                  function near(a,b){return Math.abs(a-b)<1}\
                  function same(){var a=box(chart,'.lane'),b=box(memory,'.lane'),c=box(memory,'path.act');\
                  return near(a.left,b.left)&&near(a.right,b.right)&&near(b.left,c.left)&&near(b.right,c.right)}\
                  function ticks(of){return of.querySelector('.axis').textContent}\
                  var dot=box(memory,'.dot').left,seen=[same()];press('End');press('+');press('+');\
                  seen.push(same(),memory.dataset.zoom,memory.scrollLeft>0,memory.scrollLeft===chart.scrollLeft,\
                  ticks(memory)===ticks(chart));press('0');\
                  seen.push(same(),memory.scrollLeft,near(dot,box(memory,'.dot').left));\
                  document.body.dataset.seen=seen</script></body>";
    let html = SimulationPage::new(&simulation, "1f1b").html();
    fs::write(&page, html.replace("</body>", script)).unwrap();
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    assert!(!log.contains("CONSOLE"), "{log}");
    let seen = "true,true,4,true,true,true,true,0,true";
    assert_eq!(between(&dom, "data-seen=\"", "\""), seen);
}

/// A page that compares a step, whose stage 1 has a slow backward, with its prediction, and a script that
/// acts on it.
fn comparison(acts: &str) -> String {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4)).unwrap();
    let time = |time| Micros::new(time).unwrap();
    let costs = Costs::uniform(2, time(1000.0), time(500.0), time(500.0));
    let slower = costs
        .clone()
        .with_time(StageId(1), ActionKind::Backward, time(1500.0));
    let measured = simulate(&schedule, &slower).timeline;
    let explanation = explain(&simulate(&schedule, &costs), &measured).unwrap();
    let page = render::compare_html(&explanation, "Step 3", "Measured & predicted");
    page.replace("</body>", &format!("<script>{acts}</script></body>"))
}

#[test]
fn the_comparison_is_usable_by_pointer_keyboard_and_screen_reader_in_light_and_dark() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("comparison.html");
    let opened = |acts: &str, flags: &[&str]| {
        fs::write(&page, comparison(acts)).unwrap();
        let (dom, log) = open(browser, folder.path(), &page, flags);
        assert!(dom.contains("data-ready=\"yes\""), "{log}");
        assert!(!log.contains("CONSOLE"), "{log}");
        dom
    };
    let dom = opened("", &[]);
    // The text is there without any pointer action.
    assert!(dom.contains("stage 1's backward took 1.50 ms on average where 1.00 ms was predicted"));
    for name in ["slow stage", "warm-up", "hand-over", "engine", "together"] {
        assert!(
            dom.contains(&format!("scope=\"row\">{name}</th>")),
            "{name}"
        );
    }
    // Two timelines of 16 actions, each with a separate name for screen readers.
    assert_eq!(dom.matches("<title>").count(), 1 + 2 * 16);
    assert_eq!(dom.matches("<caption>").count(), 3);
    assert!(dom.contains("<html lang=\"en\"") && dom.contains("aria-label=\"Step 3 took"));
    assert_eq!(dom.matches("://").count(), 1, "it loads nothing");

    let press = "var chart=document.getElementById('chart');chart.focus();\
                 function press(key){chart.dispatchEvent(new KeyboardEvent('keydown',{key:key}));}";
    let detail = |acts: &str| {
        let dom = opened(&format!("{press}{acts}"), &[]);
        let detail = between(&dom, "<output id=\"detail\" class=\"detail\">", "</output>");
        (detail.to_owned(), dom)
    };
    let (first, dom) = detail("press('ArrowRight')");
    assert!(first.starts_with("0F0: forward (F), stage 0, micro-batch 0\nmeasured 0.0 µs"));
    assert!(first.contains("\npredicted 0.0 µs to 1.00 ms"), "{first}");
    // The action is marked, and so is its counterpart in the other timeline.
    assert_eq!(dom.matches("<g class=\"F on\">").count(), 1);
    assert_eq!(dom.matches("<g class=\"F twin\">").count(), 1);
    assert!(
        detail("press('Home');press('ArrowRight')")
            .0
            .starts_with("0F1:")
    );
    assert!(detail("press('Home');press('End')").0.starts_with("0B3:"));
    // Down from device 0's last measured action: device 1's last, then the prediction.
    let down = "press('Home');press('End');press('ArrowDown')";
    let (slow, _) = detail(down);
    assert!(
        slow.starts_with("1B3: backward (B)") && slow.ends_with("+500.0 µs"),
        "{slow}"
    );
    assert!(
        detail(&format!("{down};press('ArrowDown')"))
            .0
            .contains("\npredicted 9.00 ms")
    );
    assert_eq!(
        detail("press('Home');press('Escape')").0,
        "Point at an action, or press an arrow key in the picture: its times are shown here."
    );
    let point = "document.querySelectorAll('svg g rect')[1].dispatchEvent(\
                 new MouseEvent('mousemove',{bubbles:true}))";
    assert!(detail(point).0.starts_with("0F1:"));

    fs::write(&page, comparison("")).unwrap();
    audited(browser, folder.path(), &page);
}
