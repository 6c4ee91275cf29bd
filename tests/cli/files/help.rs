//! The help and the version: contents and order of the short help.

use std::path::Path;

use super::gpipe;

#[test]
fn a_short_help_and_a_long_one_have_every_flag_below_a_heading() {
    let here = Path::new(".");
    let text = |args: &str| String::from_utf8(gpipe(here, args).stdout).unwrap();
    let (short, long) = (text("train -h"), text("train --help"));
    assert!(short.lines().count() * 2 < long.lines().count());
    for heading in [
        "Model",
        "Pipeline",
        "Training",
        "Data",
        "Evaluation",
        "Files and output",
    ] {
        let line = format!("\n{heading}:\n");
        assert!(short.contains(&line) && long.contains(&line), "{heading}");
    }
    // Regression test: the short help had 42 flags and no example with data.
    let (flags, _) = short.split_once("\nExamples:").unwrap();
    let is_flag = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
    assert!(flags.lines().filter(is_flag).count() <= 25, "{short}");
    assert!(short.contains("train --data mine.txt"), "{short}");
    let words = short.split_whitespace().collect::<Vec<_>>().join(" ");
    let common = [
        "--balance <LIST> Layers of",
        "(the first four GPUs, or four CPU stages)",
    ];
    assert!(common.iter().all(|own| words.contains(own)), "{short}");
    // Rarely used flags are in the long help only.
    for rare in ["--outer-momentum", "--tf32", "--patience"] {
        assert!(!short.contains(rare) && long.contains(rare), "{rare}");
    }
    // Flags without a section are clap's own.
    let options = long.split_once("\nOptions:\n").unwrap().1;
    let end = options.find("\nModel:").unwrap_or(options.len());
    let flags = options[..end].lines().map(str::trim_start);
    let flags: Vec<&str> = flags.filter(|line| line.starts_with('-')).collect();
    assert_eq!(flags, ["-h, --help"]);
    // Examples fit a terminal of 80 columns, to be pasted.
    for verb in ["train", "plan", "profile", "simulate", "launch"] {
        let help = text(&format!("{verb} --help"));
        let examples = help.split_once("Examples:").unwrap().1;
        assert!(examples.lines().all(|line| line.len() <= 80), "{examples}");
    }
}

/// Regression test: the list of verbs did not say where to begin, and its first entry was `completions`.
#[test]
fn the_help_has_first_steps() {
    let help = String::from_utf8(gpipe(Path::new("."), "-h").stdout).unwrap();
    let (_, verbs) = help.split_once("\nCommands:\n").unwrap();
    let at = |verb: &str| verbs.find(&format!("  {verb} ")).unwrap();
    let places = [
        "train", "generate", "plot", "profile", "schedule", "launch", "env", "man", "help",
    ]
    .map(at);
    assert!(places.is_sorted() && places[0] == 0, "{help}");
    let (_, steps) = help.split_once("\nFirst steps:\n").unwrap();
    assert!(steps.contains("gpipe-rs train --steps 100"), "{steps}");
    assert!(steps.lines().all(|line| line.len() <= 80), "{steps}");
}

#[test]
fn the_long_version_says_what_it_was_built_with() {
    let here = Path::new(".");
    let text = |args: &str| String::from_utf8(gpipe(here, args).stdout).unwrap();
    assert_eq!(text("-V").lines().count(), 1);
    let long = text("--version");
    assert!(
        long.contains("\nlibtorch  ") && long.contains("\nfeatures  "),
        "{long}"
    );
}
