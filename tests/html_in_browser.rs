//! The HTML of a simulation, opened in a real browser where one is installed.
#![allow(clippy::unwrap_used)]

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
    BROWSERS.into_iter().find(answers)
}

/// The page's document after its scripts have run, and what it logged.
fn open(browser: &str, folder: &Path, page: &Path) -> (String, String) {
    let output = Command::new(browser)
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
        println!(
            "NOT CHECKED: there is no browser here (looked for {})",
            BROWSERS.join(", ")
        );
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
    let (dom, log) = open(browser, folder.path(), &page);
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
    let (dom, log) = open(browser, folder.path(), &page);
    let detail = ">0F0: forward (F), stage 0, micro-batch 0   0.0 us to 500.0 us (500.0 us)</div>";
    assert!(dom.contains(detail), "{log}");
}
