//! Opens pages in a browser.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Browser flags for the light and dark colour schemes.
pub(crate) const SCHEMES: [(&str, bool); 2] = [
    ("--blink-settings=preferredColorScheme=1", false),
    ("--blink-settings=preferredColorScheme=0", true),
];

/// The first browser that starts.
pub(crate) fn browser() -> Option<&'static str> {
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

/// The page's document after its scripts have run, and its log.
pub(crate) fn open(browser: &str, folder: &Path, page: &Path, flags: &[&str]) -> (String, String) {
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

/// The part of `text` between `begin` and `end`.
pub(crate) fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let from = text.find(begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let length = text[from..].find(end).unwrap_or_else(|| panic!("no {end}"));
    &text[from..from + length]
}

/// Opens a page in light and dark, wide and narrow, and checks that nothing is logged or loaded, its script
/// completes, text has the contrast of WCAG's level AA, the page is no wider than the window, and focusable
/// elements have names. Returns the document of the first time.
pub(crate) fn audited(browser: &str, folder: &Path, page: &Path) -> String {
    let html = fs::read_to_string(page).unwrap();
    let script = format!("<script>{}</script></body>", include_str!("audit.js"));
    let html = html.replace("</body>", &script);
    let mut first = None;
    for (scheme, dark) in SCHEMES {
        for width in [1200, 360] {
            let audit = folder.join("audit.html");
            let framed = html.replace('&', "&amp;").replace('"', "&quot;");
            // Windows have a minimum width; frames do not.
            let frame = format!(
                "<!DOCTYPE html><meta name=\"color-scheme\" content=\"light dark\"><body>\
                 <iframe width=\"{width}\" height=\"900\" srcdoc=\"{framed}\"></iframe></body>"
            );
            fs::write(&audit, if width == 1200 { &html } else { &frame }).unwrap();
            let window = format!("--window-size={width},900");
            let (dom, log) = open(browser, folder, &audit, &[scheme, &window]);
            assert!(!log.contains("CONSOLE"), "{log}");
            let found = between(&dom, "data-audit=\"", "\"").replace("&quot;", "\"");
            let found: serde_json::Value = serde_json::from_str(&found).unwrap();
            let case = format!("{scheme} {width}: {found}");
            assert_eq!(found["dark"], dark, "{case}");
            assert_eq!(found["width"], width, "{case}");
            assert_eq!(found["wider"], 0, "{case}");
            assert_eq!(found["poor"], serde_json::json!([]), "{case}");
            assert_eq!(found["nameless"], 0, "{case}");
            assert_eq!(found["loaded"], 0, "{case}");
            assert!(found["texts"].as_u64() > Some(20), "{case}");
            first.get_or_insert(dom);
        }
    }
    let dom = first.unwrap();
    assert!(
        dom.contains("data-ready=\"yes\""),
        "the script did not run to its end"
    );
    // The file loads nothing: its only address is the SVG namespace.
    let addresses = dom.matches("://").count();
    assert_eq!(addresses, dom.matches("http://www.w3.org/2000/svg").count());
    dom
}
