//! The page about a profile and its plan, written by the command.

use crate::run::printed;

use super::browser::{audited, between, browser, open};
use std::fs;

/// Checks that layers, cuts, timeline, memory and schedules are accessible.
fn check(dom: &str, layers: &[&str], stages: usize) {
    for section in ["layers", "timeline", "memory", "schedules", "doubts"] {
        assert!(
            dom.contains(&format!("<h2 id=\"h-{section}\">")),
            "{section}"
        );
        assert!(
            dom.contains(&format!("<a href=\"#{section}\">")),
            "{section}"
        );
    }
    for layer in layers {
        assert!(
            dom.contains(&format!("scope=\"row\">{layer}</th>")),
            "{layer}"
        );
    }
    assert_eq!(dom.matches("scope=\"rowgroup\"").count(), stages);
    assert_eq!(dom.matches(">cut: ").count(), stages - 1);
    assert!(dom.contains("0F0: forward (F), stage 0, micro-batch 0"));
    assert!(dom.contains("aria-label=\"Memory of each device over the step\""));
    assert!(dom.contains("<tr role=\"row\" class=\"best\">"));
    assert!(dom.contains("<p class=\"say\" id=\"limit\"><strong>"));
    assert!(dom.contains("role=\"application\""), "the arrow keys work");
}

#[test]
fn the_plan_of_a_profile_renders_in_light_and_dark_wide_and_narrow() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let layer = |name: &str| {
        serde_json::json!({
            "name": name, "forward_us": 900, "backward_input_us": 950, "backward_weight_us": 850,
            "parameter_bytes": 3 << 20, "activation_bytes": 8 << 20, "output_bytes": 1 << 19,
        })
    };
    let long = "a_long_name.".repeat(20);
    let evil = "<script>console.error('run')</script>";
    let mut names = vec!["embed", evil, long.as_str()];
    names.extend(["block"; 60]);
    let layers: Vec<_> = names.into_iter().map(layer).collect();
    let profile = serde_json::json!({"version": 1, "device": "cpu", "batch": 8, "layers": layers});
    fs::write(folder.join("profile.json"), profile.to_string()).unwrap();
    printed(
        folder,
        "plan --profile profile.json --devices 3 --memory 2GiB --chunks 1 --micro 8 --link \
         10GB/s,5us --report report.html",
    );
    let page = folder.join("report.html");
    let dom = audited(browser, folder, &page);
    check(&dom, &["embed", "block"], 3);
    assert!(dom.contains("&lt;script&gt;console.error('run')"));
    assert!(dom.contains(">limit 2.0 GiB</text>") || dom.contains(" of its 2.0 GiB"));

    // The content does not depend on the script.
    let html = fs::read_to_string(&page).unwrap();
    fs::write(&page, html.split("<script>").next().unwrap()).unwrap();
    let (dom, _) = open(browser, folder, &page, &[]);
    assert!(dom.contains("0F0: forward (F)") && dom.contains(">embed</th>"));
    assert!(!dom.contains("role=\"application\""));

    // Down from the first action of device 0, with keys only.
    let press = "<script>var c=document.getElementById('chart');c.focus();['Home','ArrowDown']\
                 .forEach(function(k){c.dispatchEvent(new KeyboardEvent('keydown',{key:k}));});\
                 </script></body>";
    fs::write(&page, html.replace("</body>", press)).unwrap();
    let (dom, log) = open(browser, folder, &page, &[]);
    let detail = between(&dom, "<output id=\"detail\" class=\"detail\">", "</output>");
    assert!(
        detail.starts_with("1F0: forward (F), stage 1"),
        "{detail} {log}"
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_report_of_a_measured_model_renders() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    printed(
        folder,
        "profile --model mlp --inputs 16 --hidden 32 --depth 3 --devices cpu,cpu --batch 16 --quick \
         --threads-per-stage 1 --chunks 1 --report report.html",
    );
    let dom = audited(browser, folder, &folder.join("report.html"));
    check(&dom, &["hidden.0"], 2);
    assert!(
        dom.contains("data-k=\"spread\">\u{b1} "),
        "how far measurements are apart"
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_report_of_a_training_run_by_a_plan_renders() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("text.txt"), "the whale, up helm! ".repeat(60)).unwrap();
    let model = "--layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --threads-per-stage 1";
    printed(
        folder,
        &format!("profile --model gpt {model} --quick --plan plan.json"),
    );
    printed(
        folder,
        &format!("train {model} --data text.txt --steps 2 --plan plan.json --report report.html"),
    );
    let dom = audited(browser, folder, &folder.join("report.html"));
    assert!(dom.contains("<dt>The plan said</dt>"));
    assert!(dom.contains("aria-label=\"Memory of each device over the step\""));
    assert!(
        dom.contains("data-k=\"held, measured\"") && dom.contains("peak of an action, measured")
    );
    assert!(dom.contains(">measured</tspan>") && dom.contains(">predicted</tspan>"));
}
