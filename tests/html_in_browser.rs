//! The pages of a simulation and of a comparison, opened in a real browser where one
//! is installed.
#![allow(clippy::unwrap_used)]

use gpipe_partitioner::{
    Costs, Kind, Micros, ScheduleKind, Shape, StageId, explain, render, simulate,
};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The first browser that answers.
fn browser() -> Option<&'static str> {
    let answers = |name: &&str| {
        let mut version = Command::new(name);
        version
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    let found = BROWSERS.into_iter().find(answers);
    if found.is_none() {
        println!(
            "NOT CHECKED: there is no browser here (looked for {})",
            BROWSERS.join(", ")
        );
    }
    found
}

/// The page's document after its scripts have run, and what it logged.
fn open(browser: &str, folder: &Path, page: &Path, flags: &[&str]) -> (String, String) {
    let output = Command::new(browser)
        .args(flags)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

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
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    assert!(
        dom.contains("data-ready=\"yes\""),
        "the script did not run to its end: {log}"
    );
    assert!(!log.contains("CONSOLE"), "{log}");
    // Details of all actions (each of 8 stages does F, I, W or F, B per micro-batch), a legend.
    let actions = dom.matches("<title>").count() - 1;
    assert!((8 * 8 * 2..=8 * 8 * 3).contains(&actions), "{actions}");
    assert!(dom.contains("0F0: forward (F), stage 0, micro-batch 0"));
    for kind in ["forward (F)", "input gradient (I)", "weight gradient (W)"] {
        assert!(dom.contains(&format!(">{kind}</text>")), "{kind}");
    }
    assert!(dom.contains("Step 25.50 ms, bubble 5.9 %"));
    // One file that loads nothing: the only address is the name of SVG itself.
    let addresses = dom.matches("://").count();
    assert_eq!(addresses, dom.matches("http://www.w3.org/2000/svg").count());
    assert!(dom.contains(">Point at an action for its times.</div>"));

    // The same page with the pointer on its first action.
    let point = "<script>document.querySelector('svg g rect').dispatchEvent(\
                 new MouseEvent('mousemove',{bubbles:true}))</script></body>";
    let pointed = fs::read_to_string(&page).unwrap().replace("</body>", point);
    fs::write(&page, pointed).unwrap();
    let (dom, log) = open(browser, folder.path(), &page, &[]);
    let detail = ">0F0: forward (F), stage 0, micro-batch 0   0.0 us to 500.0 us (500.0 us)</div>";
    assert!(dom.contains(detail), "{log}");
}

/// The page that compares a step, in which stage 1's backward is slow, with its
/// prediction, and a script that acts on it.
fn comparison(acts: &str) -> String {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4)).unwrap();
    let time = |time| Micros::new(time).unwrap();
    let costs = Costs::uniform(2, time(1000.0), time(500.0), time(500.0));
    let slower = costs
        .clone()
        .with_time(StageId(1), Kind::Backward, time(1500.0));
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
    // The words are there without pointing at anything.
    assert!(dom.contains("stage 1's backward took 1.50 ms on average where 1.00 ms was predicted"));
    for name in [
        "slow stage",
        "warm-up",
        "waiting for link",
        "engine",
        "together",
    ] {
        assert!(
            dom.contains(&format!("<th scope=\"row\">{name}</th>")),
            "{name}"
        );
    }
    // Two timelines of 16 actions, each with a name of its own for a reader.
    assert_eq!(dom.matches("<title>").count(), 1 + 2 * 16);
    assert_eq!(dom.matches("<caption>").count(), 3);
    assert!(dom.contains("<html lang=\"en\"") && dom.contains("aria-label=\"Step 3 took"));
    assert_eq!(dom.matches("://").count(), 1, "it loads nothing");

    let press = "var chart=document.getElementById('chart');chart.focus();\
                 function press(key){chart.dispatchEvent(new KeyboardEvent('keydown',{key:key}));}";
    let detail = |acts: &str| {
        let dom = opened(&format!("{press}{acts}"), &[]);
        let begin = dom.find("<output id=\"detail\">").unwrap() + 20;
        let end = dom[begin..].find("</output>").unwrap() + begin;
        (dom[begin..end].trim_start_matches('>').to_owned(), dom)
    };
    let (first, dom) = detail("press('ArrowRight')");
    assert!(first.starts_with("0F0: forward (F), stage 0, micro-batch 0\nmeasured 0.0 us"));
    assert!(first.contains("\npredicted 0.0 us to 1.00 ms"), "{first}");
    // The action is marked, and so is the same one in the other timeline.
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
        slow.starts_with("1B3: backward (B)") && slow.ends_with("+500.0 us"),
        "{slow}"
    );
    assert!(
        detail(&format!("{down};press('ArrowDown')"))
            .0
            .contains("\npredicted 9.00 ms")
    );
    assert_eq!(
        detail("press('Home');press('Escape')").0,
        "No action chosen."
    );
    let point = "document.querySelectorAll('svg g rect')[1].dispatchEvent(\
                 new MouseEvent('mousemove',{bubbles:true}))";
    assert!(detail(point).0.starts_with("0F1:"));

    // Text on its ground, by the formula of WCAG 2.2: 7 is its highest level.
    let contrast = "function light(css){var v=css.match(/\\d+/g).slice(0,3).map(function(c){c/=255;\
         return c<=.04045?c/12.92:Math.pow((c+.055)/1.055,2.4);});\
         return .2126*v[0]+.7152*v[1]+.0722*v[2];}\
         function ratio(a,b){return (Math.max(a,b)+.05)/(Math.min(a,b)+.05);}\
         var body=getComputedStyle(document.body),label=document.querySelector('.name'),\
         ground=document.querySelector('.ground'),paper=light(body.backgroundColor);\
         document.body.dataset.dark=paper<.2;\
         document.body.dataset.text=ratio(light(body.color),paper)>=7;\
         document.body.dataset.picture=ratio(light(getComputedStyle(label).fill),\
         light(getComputedStyle(ground).fill))>=7;";
    for (flags, dark) in [(&[][..], false), (&["--force-dark-mode"][..], true)] {
        let dom = opened(contrast, flags);
        let wanted = format!("data-dark=\"{dark}\" data-text=\"true\" data-picture=\"true\"");
        assert!(
            dom.contains(&wanted),
            "{}",
            &dom[dom.find("<body").unwrap()..][..120]
        );
    }
}
