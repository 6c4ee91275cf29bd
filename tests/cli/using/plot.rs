//! `gpipe-rs plot`: curves of runs.

use super::{gpipe, printed, refused};

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Writes a run whose losses fall from `from`.
fn run(folder: &Path, name: &str, steps: u32, from: f64) {
    let mut lines = String::new();
    for step in 1..=steps {
        let loss = from / f64::from(step).sqrt();
        let line = format!(
            "{{\"step\":{step},\"loss\":{loss},\"samples_per_s\":80.5,\"tokens_per_s\":{},\
             \"recompute\":\"never\",\"peak_bytes\":[{step},7]}}",
            10_000 + step
        );
        writeln!(lines, "{line}").unwrap();
    }
    let run = folder.join(name);
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("metrics.jsonl"), lines).unwrap();
}

#[test]
fn loss_and_throughput_of_a_run_are_drawn_beside_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "runs/1", 40, 4.0);
    let output = gpipe(folder.path(), "plot runs/1");
    assert!(output.status.success() && output.stdout.is_empty());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "wrote runs/1/plot.svg\n");
    let svg = fs::read_to_string(folder.path().join("runs/1/plot.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for part in [
        ">loss (mean of the mini-batch)</text>",
        ">throughput (tokens/s)</text>",
        ">training step</text>",
        ">runs/1</text>",
        "<title>runs/1: 4.0000 at step 1, 0.6325 at step 40</title>",
        "prefers-color-scheme:dark",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    // It loads nothing, and both charts have a curve.
    assert_eq!(svg.matches("://").count(), 1);
    assert_eq!(svg.matches("<g class=\"c0\"><title>").count(), 2);
}

/// Metrics of `steps` steps of a classifier that is evaluated after every third.
fn evaluated(path: &Path, steps: u32) {
    let lines = (1..=steps).map(|step| {
        let held_out = match step % 3 {
            0 => format!(
                ",\"held_out_loss\":{},\"held_out_accuracy\":{}",
                f64::from(5 + steps - step) / 3.0,
                f64::from(step) / f64::from(steps)
            ),
            _ => String::new(),
        };
        let loss = 3 + steps - step;
        format!("{{\"step\":{step},\"loss\":{loss}{held_out}}}\n")
    });
    fs::write(path, lines.collect::<String>()).unwrap();
}

/// Regression test: both were solid lines of one colour, one of them with dots.
#[test]
fn what_is_held_out_is_told_from_training_by_dashes_colour_and_legend() {
    let folder = tempfile::tempdir().unwrap();
    evaluated(&folder.path().join("own.jsonl"), 60);
    let svg = printed(folder.path(), "plot own.jsonl -o -");
    let held_out = "<g class=\"c1\" stroke-dasharray=\"6 5\">";
    for part in [
        ">loss (mean of the mini-batch)</text>".to_owned(),
        "<g class=\"c0\"><title>own.jsonl: 62.0 at step 1, 3.0000 at step 60</title>".to_owned(),
        format!("{held_out}<title>own.jsonl, held out: 20.7 at step 3, 1.6667 at step 60</title>"),
        ">own.jsonl</text>".to_owned(),
        ">own.jsonl, held out</text>".to_owned(),
    ] {
        assert!(svg.contains(&part), "{part}: {svg}");
    }
    // In the legend, with the loss, and in the chart of the accuracy.
    assert_eq!(svg.matches(held_out).count(), 3);
    let alone = printed(folder.path(), "plot own.jsonl --metrics held_out_loss -o -");
    assert!(alone.contains(">held-out loss (mean of what is held out)</text>"));
    assert_eq!(alone.matches(held_out).count(), 2);
}

/// With several runs, colours distinguish runs, and dashes mark held-out values.
#[test]
fn what_is_held_out_has_the_colour_of_its_run_where_there_are_several() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "plain", 60, 4.0);
    evaluated(&folder.path().join("own.jsonl"), 60);
    let svg = printed(folder.path(), "plot plain own.jsonl -o -");
    let dashed = "stroke-dasharray=\"6 5\"";
    assert!(svg.contains(&format!(
        "<g class=\"c1\" {dashed}><title>own.jsonl, held out: "
    )));
    assert!(!svg.contains(&format!("<g class=\"c0\" {dashed}>")));
    assert!(
        svg.contains(&format!("<g class=\"any\" {dashed}>")),
        "legend"
    );
    assert!(svg.contains(">held out</text>"));
    let none = printed(folder.path(), "plot plain -o -");
    assert!(!none.contains("held out") && !none.contains(dashed));
}

#[test]
fn the_accuracy_has_a_chart_of_its_own_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    evaluated(&folder.path().join("own.jsonl"), 6);
    run(folder.path(), "plain", 6, 4.0);
    let accuracy = ">held-out accuracy (% of what is held out)</text>";
    for runs in ["own.jsonl", "own.jsonl plain"] {
        let svg = printed(folder.path(), &format!("plot {runs} -o -"));
        assert!(svg.contains(accuracy), "{runs}: {svg}");
    }
    assert!(!printed(folder.path(), "plot plain -o -").contains(accuracy));
}

/// Regression test: of two runs with equal losses, as the same seed gives, the second hid the first.
#[test]
fn runs_that_are_the_same_take_turns_along_their_curve() {
    let folder = tempfile::tempdir().unwrap();
    for (name, from) in [("one", 4.0), ("other", 5.0), ("same", 4.0)] {
        run(folder.path(), name, 60, from);
    }
    let svg = printed(folder.path(), "plot one other same --metrics loss -o -");
    for drawn in [
        "<g class=\"c0\" stroke-dasharray=\"12 12\" stroke-dashoffset=\"-0\"><title>one: ",
        "<g class=\"c1\"><title>other: ",
        "<g class=\"c2\" stroke-dasharray=\"12 12\" stroke-dashoffset=\"-12\"><title>same: ",
    ] {
        assert!(svg.contains(drawn), "{drawn}: {svg}");
    }
}

/// Regression test: a tick of memory was `1700k`.
#[test]
fn memory_has_its_unit_along_the_axis() {
    let folder = tempfile::tempdir().unwrap();
    let line = |step: u64| format!("{{\"step\":{step},\"peak_bytes\":[{}]}}\n", step << 20);
    let lines: String = (1..=5).map(line).collect();
    fs::write(folder.path().join("own.jsonl"), lines).unwrap();
    let svg = printed(folder.path(), "plot own.jsonl --metrics peak_bytes.0 -o -");
    for part in [
        ">peak_bytes.0 (MiB)</text>",
        ">2</text>",
        "1.0 MiB at step 1, 5.0 MiB at step 5",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    let log = printed(
        folder.path(),
        "plot own.jsonl --metrics peak_bytes.0 --log -o -",
    );
    assert!(log.contains(">peak_bytes.0</text>"), "{log}");
}

/// A line between two points suggests more points.
#[test]
fn a_few_points_are_marked_and_many_are_not() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "few", 5, 4.0);
    run(folder.path(), "many", 500, 4.0);
    let dots = |args: &str| printed(folder.path(), args).matches("<circle").count();
    assert_eq!(dots("plot few -o -"), 10, "five in each of two charts");
    assert_eq!(dots("plot many -o -"), 0);
    // Regression test: the throughput of many steps was a zigzag without --smooth.
    let has = |args: &str, what: &str| printed(folder.path(), args).contains(what);
    assert!(has("plot many -o -", "(strong: mean of 9 steps)"));
    assert!(!has("plot many --smooth 1 -o -", "class=\"raw\""));
    assert!(!has("plot few -o -", "class=\"raw\""));
    // The steps behind a mean are faint.
    assert_eq!(dots("plot few --smooth 2 -o -"), 0);
}

#[test]
fn runs_are_compared_in_one_picture_with_means_where_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "a", 30, 4.0);
    run(folder.path(), "b & <c>", 60, 2.0);
    let metrics = folder.path().join("b & <c>/metrics.jsonl");
    fs::rename(metrics, folder.path().join("b.jsonl")).unwrap();
    fs::write(folder.path().join("<d>.jsonl"), "{\"step\":5,\"loss\":1}\n").unwrap();
    let svg = printed(
        folder.path(),
        "plot a b.jsonl <d>.jsonl --metrics loss,peak_bytes.0 --smooth 10 -o -",
    );
    for run in ["a", "b.jsonl", "&lt;d&gt;.jsonl"] {
        assert!(svg.contains(&format!(">{run}</text>")), "{run}");
    }
    assert!(svg.contains("(strong: mean of 10 steps)"));
    assert_eq!(
        svg.matches("class=\"raw\"").count(),
        4,
        "two runs in two charts"
    );
    assert_eq!(
        svg.matches("<circle").count(),
        2,
        "a single step is a dot, and its mean too"
    );
    assert!(svg.contains(">peak_bytes.0 (bytes)</text>"));
    assert!(!svg.contains("<d>"));
}

#[test]
fn many_steps_make_no_large_file() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "run", 50_000, 9.0);
    let svg = printed(folder.path(), "plot run -o -");
    assert!(svg.len() < 200_000, "{} bytes", svg.len());
}

/// A killed or running run may end with half a line.
#[test]
fn a_torn_last_line_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "run", 3, 4.0);
    let metrics = folder.path().join("run/metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let wanted = printed(folder.path(), "plot run -o -");
    for torn in ["{", "{\"step\":4,\"lo", "{\"step\":4,\"loss\":1.25"] {
        fs::write(&metrics, format!("{whole}{torn}")).unwrap();
        assert_eq!(printed(folder.path(), "plot run -o -"), wanted, "{torn}");
    }
}

#[test]
fn what_cannot_be_drawn_is_said_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    run(path, "runs/2", 3, 4.0);
    run(path, "runs/11", 3, 4.0);
    fs::create_dir(path.join("empty")).unwrap();
    fs::write(path.join("empty.jsonl"), "").unwrap();
    fs::write(path.join("list.jsonl"), "[1]\n").unwrap();
    fs::write(path.join("stepless.jsonl"), "{\"loss\":1}\n").unwrap();
    fs::write(
        path.join("torn.jsonl"),
        "{\"step\":1,\"loss\":2}\n{\"st\n{\"step\":2}\n",
    )
    .unwrap();
    fs::write(
        path.join("words.jsonl"),
        "{\"step\":1,\"recompute\":\"never\"}\n",
    )
    .unwrap();
    fs::write(path.join("bytes.jsonl"), b"\xff\xfe\x00\n").unwrap();
    let cases: [(&str, &[&str]); 14] = [
        ("plot", &["<RUN>"]),
        ("plot nowhere", &["there is no run nowhere"]),
        ("plot empty", &["empty is no run folder", "metrics.jsonl"]),
        ("plot runs", &["no run folder", "did you mean runs/11?"]),
        (
            "plot empty.jsonl",
            &["empty.jsonl: is empty: no step has ended yet"],
        ),
        (
            "plot list.jsonl",
            &["list.jsonl, line 1", "no line of metrics"],
        ),
        ("plot stepless.jsonl", &["line 1", "`step` is missing"]),
        ("plot torn.jsonl", &["torn.jsonl, line 2"]),
        ("plot bytes.jsonl", &["bytes.jsonl, line 1"]),
        (
            "plot words.jsonl",
            &["no loss to draw", "no numbers but steps"],
        ),
        (
            "plot runs/2 --metrics los",
            &["no number `los`", "loss, peak_bytes.0, peak_bytes.1"],
        ),
        (
            "plot runs/2 -o plot.pdf",
            &["--output plot.pdf", ".svg or .png"],
        ),
        (
            "plot runs/2 -o nowhere/plot.svg",
            &["there is no folder nowhere"],
        ),
        ("plot runs/2 --smooth 0", &["at least 1"]),
    ];
    for (args, wanted) in cases {
        refused(path, args, wanted);
    }
}

#[test]
fn a_picture_of_pixels_is_made_or_explained() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "run", 5, 4.0);
    if cfg!(feature = "png") {
        printed(folder.path(), "plot run -o run.png");
        let png = fs::read(folder.path().join("run.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
        // Text is drawn, too: a picture without takes half as many bytes.
        assert!(png.len() > 20_000, "{} bytes", png.len());
    } else {
        refused(
            folder.path(),
            "plot run -o run.png",
            &["without the feature `png`", ".svg"],
        );
    }
}
