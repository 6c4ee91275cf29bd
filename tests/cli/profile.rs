//! `gpipe-rs profile` as users run it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gpipe::partitioner::{Plan, Profile};
use gpipe::settings::Kernels;
use serde_json::Value;

use crate::run::{command, config, gpipe, succeeded};

const GPT: &str = "--model gpt --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 \
                   --threads-per-stage 1 --vocab 40 --budget 1";

fn profiled(folder: &Path, flags: &[&str]) -> Output {
    let mut args = vec!["profile"];
    args.extend(GPT.split_whitespace());
    args.extend(flags);
    gpipe(folder, &args)
}

#[test]
fn a_model_is_profiled_planned_and_trained_by_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let output = profiled(
        folder.path(),
        &["--json", "--plan", "plan.json", "-o", "profile.json"],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["profile"]["layers"].as_array().unwrap().len(), 4);
    assert!(
        report["limit"].as_str().unwrap().contains("-bound")
            || report["limit"].as_str().unwrap().contains("unbalanced")
    );
    assert!(report["link"]["latency_us"].as_f64().unwrap() > 0.0);
    let plan = Plan::read(folder.path().join("plan.json")).unwrap();
    Profile::read(folder.path().join("profile.json")).unwrap();
    let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 3 \
                 --threads-per-stage 1 --quiet --json --data text.txt --plan plan.json";
    let text = "the whale, the whale! up helm, up helm! ".repeat(60);
    fs::write(folder.path().join("text.txt"), text).unwrap();
    let args: Vec<&str> = train.split_whitespace().collect();
    let output = gpipe(folder.path(), &args);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let planned = summary["planned_ms"].as_f64().unwrap();
    assert!((planned - plan.step.get() / 1e3).abs() < 1e-9);
    assert!(summary["makespan_ms_median"].as_f64().unwrap() > 0.0);
    // A plan without a model, as the first versions wrote.
    let path = folder.path().join("plan.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut old: Value = serde_json::from_str(&text).unwrap();
    let model = old.as_object_mut().unwrap().remove("model").unwrap();
    assert_eq!(
        (&model["name"], &model["settings"]["d_model"]),
        (&"gpt".into(), &16.into())
    );
    fs::write(&path, old.to_string()).unwrap();
    let output = gpipe(folder.path(), &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("warning: the plan does not say for which model"),
        "{errors}"
    );
    // A plan from doubtful measurements.
    old["doubts"] = serde_json::json!(["layer `x` is noisy"]);
    fs::write(&path, old.to_string()).unwrap();
    let loud: Vec<&str> = args
        .iter()
        .copied()
        .filter(|arg| *arg != "--quiet")
        .collect();
    let errors = String::from_utf8(gpipe(folder.path(), &loud).stderr).unwrap();
    let note = "note: of the profile that the plan was made from: layer `x` is noisy";
    assert!(errors.contains(note), "{errors}");
    fs::write(&path, text).unwrap();
    // The same plan for another model, batch or machine.
    let refused = |flags: &[&str], wanted: &str| {
        let output = gpipe(
            folder.path(),
            &[&["train", "--plan", "plan.json"], flags].concat(),
        );
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.lines().next().unwrap().contains(wanted), "{errors}");
    };
    let sizes = "--layers 2 --d-model 16 --heads 2 --seq 16";
    let sizes: Vec<&str> = sizes.split_whitespace().collect();
    refused(
        &["--layers", "5"],
        "it is for `gpt` with layers=2, not 5: use --layers 2, or profile this one",
    );
    refused(
        &[&sizes[..], &["--devices", "cpu"]].concat(),
        "it is for 2 devices",
    );
    refused(
        &[&sizes[..], &["--batch", "100"]].concat(),
        "make a plan for this one (`plan --profile PROFILE --batch 100`)",
    );
    refused(&["--micro", "4"], "cannot be used with");
}

#[test]
fn a_plan_that_is_far_off_says_to_profile_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    assert!(
        profiled(folder.path(), &["--plan", "plan.json"])
            .status
            .success()
    );
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    // Microseconds: an impossible step of an hour.
    plan["step_us"] = 3.6e9.into();
    fs::write(&path, plan.to_string()).unwrap();
    let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 2 --vocab 40 \
                 --threads-per-stage 1 --data synthetic --plan plan.json";
    let (text, _) = succeeded(gpipe(folder.path(), train), train);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let advice = "times as long; more than 25 % off: profile again on this machine";
    assert!(text.contains(advice), "{text}");
}

/// Two devices are the default.
#[test]
fn a_plan_for_one_device_is_trained_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let planned = |devices: &str| {
        let flags = ["--devices", devices, "--plan", "plan.json"];
        assert!(profiled(folder.path(), &flags).status.success());
    };
    let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 1 --vocab 40 \
                 --threads-per-stage 1 --data synthetic --plan plan.json";
    planned("cpu");
    succeeded(gpipe(folder.path(), train), train);
    planned("cpu,cpu,cpu");
    let refused = gpipe(folder.path(), train);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("it is for 3 devices, but --devices names 2"),
        "{errors}"
    );
}

#[test]
fn the_table_has_bars_cuts_a_plan_and_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let output = profiled(folder.path(), &["--schedule", "1f1b", "--micro", "4"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for start in [
        "layer ",
        "-- stage 0 on device 0",
        "embed ",
        "-- stage 1 on device 1",
        "head ",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(start)),
            "{start}: {text}"
        );
    }
    assert!(text.contains("1f1b: 2 devices, 4 micro-batches of 2 samples") && text.contains("###"));
    assert!(text.contains("\nhand-over      "), "{text}");
    let (_, limit) = text.trim_end().rsplit_once("\n\n").unwrap();
    assert!(
        limit.contains(';') && limit.contains("-bound: ") || limit.starts_with("unbalanced: "),
        "{limit}"
    );
    let output = profiled(folder.path(), &["-o", "-"]);
    let profile = Profile::from_json(output.stdout, "standard output").unwrap();
    assert_eq!(profile.layers().len(), 4);
    assert!(
        profile.doubts().is_some(),
        "the file says what it is doubted for"
    );
}

/// Regression test: the table had some 118 columns on any terminal.
#[test]
fn the_table_keeps_to_the_width_of_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let table = |columns: &str| {
        let mut args = vec!["profile"];
        args.extend(GPT.split_whitespace());
        let mut command = command(folder.path(), &args);
        succeeded(command.env("COLUMNS", columns).output().unwrap(), &args).0
    };
    let narrow = table("80");
    for line in narrow.lines() {
        assert!(line.chars().count() <= 80, "{line}\n{narrow}");
    }
    assert!(
        narrow.contains("  forward  ") && narrow.contains("##"),
        "{narrow}"
    );
    assert!(table("160").contains("bytes kept"), "wide terminals gain");
}

/// Regression test: the model was measured with another vocabulary than `models` lists, and the note about it
/// was missing.
#[test]
fn a_vocabulary_that_nobody_chose_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let gpt = "profile --model gpt --layers 1 --d-model 8 --heads 2 --seq 8 --batch 4 --budget 1";
    let said = |more: &str| {
        let args = format!("{gpt} --threads-per-stage 1 {more}");
        succeeded(gpipe(folder.path(), &args), &args).1
    };
    let line = "vocab=83, as `train` takes it, is that of the data (built-in: moby-dick)";
    assert!(said("").contains(line), "{}", said(""));
    assert!(!said("--vocab 40").contains("vocab="));
}

#[test]
fn wrong_flags_are_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 10] = [
        (
            &["--model", "gtp"],
            "no model and no file `gtp`: did you mean `gpt`?",
        ),
        (
            &["--model", "gpt", "--heads", "3"],
            "not a multiple of heads 3",
        ),
        (&["--model", "mlp", "--micro", "64"], "more than --batch 32"),
        (
            &["--model", "mlp", "--devices", "gpu"],
            "unknown device `gpu`",
        ),
        (&["--model", "mlp", "--devices", "cuda:77"], "cuda:77"),
        (
            &["--model", "mlp", "--json", "-o", "-"],
            "standard output can have one",
        ),
        (
            &["--model", "mlp", "--depth", "1", "--devices", "cpu,cpu,cpu"],
            "only 2 layers",
        ),
        (
            &[
                "--model",
                "mlp",
                "--memory",
                "1GiB,2GiB,3GiB",
                "--depth",
                "2",
                "--hidden",
                "8",
                "--quick",
            ],
            "memory",
        ),
        (
            &["--model", "mlp", "-o", "none/profile.json"],
            "no folder none",
        ),
        (&["--model", "mlp", "--bach", "3"], "--bach"),
    ];
    for (flags, wanted) in cases {
        let output = gpipe(folder.path(), &[&["profile"], flags].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
        assert!(errors.contains(wanted), "{flags:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

/// A plan decides offload and graphs like recomputation: other flags do not.
#[test]
fn a_plan_says_what_is_offloaded_and_whether_there_are_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let flags = ["--plan", "plan.json"];
    succeeded(profiled(folder.path(), &flags), &flags[..]);
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let stages = plan["balance"].as_array().unwrap().len();
    let offload: Vec<bool> = (0..stages).map(|stage| stage == 0).collect();
    plan["offload"] = serde_json::json!(offload);
    plan["cuda_graphs"] = true.into();
    fs::write(&path, plan.to_string()).unwrap();
    let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 2 \
                 --vocab 40 --data synthetic --plan plan.json --out run";
    let args: Vec<&str> = train.split_whitespace().collect();
    let output = gpipe(folder.path(), &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let run = String::from_utf8_lossy(&output.stdout);
    assert!(
        format!("{errors}{run}").contains("which has no graphs"),
        "{errors}{run}"
    );
    let config = fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    assert!(config.contains("offload = [0]"), "{config}");
    assert!(config.contains("cuda_graphs = true"), "{config}");
    for flag in [&["--offload", "1"][..], &["--cuda-graphs"]] {
        let output = gpipe(folder.path(), &[&args, flag].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let wanted = "A plan of `profile` or `plan`, which decides schedule,";
        assert!(errors.contains(wanted), "{errors}");
    }
}

#[test]
fn a_profile_says_in_which_precision_and_a_run_in_another_one_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = [
        "--precision",
        "bf16",
        "--plan",
        "plan.json",
        "-o",
        "profile.json",
    ];
    succeeded(profiled(folder, &flags), "profile");
    let profile = Profile::read(folder.join("profile.json")).unwrap();
    let plan = Plan::read(folder.join("plan.json")).unwrap();
    assert_eq!(
        (profile.precision(), plan.precision.as_deref()),
        (Some("bf16"), Some("bf16"))
    );
    let warned = |precision: &str| {
        let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 1 --vocab 40 \
                     --threads-per-stage 1 --data synthetic --plan plan.json --precision";
        let (_, errors) = succeeded(gpipe(folder, &format!("{train} {precision}")), train);
        errors.contains("warning: the plan is for layers that compute in bf16")
    };
    assert!(warned("f32") && !warned("bf16"));
    let wrong = profiled(folder, &["--precision", "f8"]);
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        wrong.status.code() == Some(2)
            && errors.contains("`f8`")
            && errors.contains("must be one of"),
        "{errors}"
    );
}

#[test]
fn a_profile_says_whose_kernels_it_was_measured_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = ["--plan", "plan.json", "-o", "profile.json"];
    let own = [&["--kernels", "onednn"][..], &flags].concat();
    succeeded(profiled(folder, &own), "profile");
    let profile = Profile::read(folder.join("profile.json")).unwrap();
    let plan = Plan::read(folder.join("plan.json")).unwrap();
    assert_eq!(
        (profile.kernels(), plan.kernels.as_deref()),
        (Some("onednn"), Some("onednn"))
    );
    let trained = |flags: &str| {
        let train = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 1 --vocab 40 \
                     --threads-per-stage 1 --data synthetic --plan plan.json";
        succeeded(gpipe(folder, &format!("{train} {flags}")), train).1
    };
    let warned = |kernels: &str| {
        let errors = trained(&format!("--kernels {kernels}"));
        errors.contains("warning: the plan is for the kernels `onednn`")
    };
    assert!(warned("libtorch") && !warned("onednn"));
    // Without the flag a run uses the plan's kernels.
    let taken = |run: &str| {
        let errors = trained(&format!("--out {run}"));
        assert!(!errors.contains("warning: the plan"), "{errors}");
        config(folder, run)["pipeline"]["kernels"].to_string()
    };
    assert_eq!(taken("one"), "\"onednn\"");
    let own = [&["--kernels", "libtorch"][..], &flags].concat();
    succeeded(profiled(folder, &own), "profile");
    assert_eq!(taken("other"), "\"libtorch\"");
    // Without the flag a profile uses the kernels that are faster here.
    succeeded(profiled(folder, &flags), "profile");
    let profile = Profile::read(folder.join("profile.json")).unwrap();
    let kernels = Kernels::auto();
    let faster = (kernels != Kernels::Libtorch).then(|| kernels.to_string());
    assert_eq!(profile.kernels(), faster.as_deref());
    let wrong = profiled(folder, &["--kernels", "mkl"]);
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        wrong.status.code() == Some(2)
            && errors.contains("`mkl`")
            && errors.contains("must be auto, libtorch, onednn or onednn:MULTIPLICATIONS"),
        "{errors}"
    );
}

/// Regression test: without a terminal it printed nothing before the end, nor on Ctrl-C.
#[test]
fn it_says_what_it_measures_and_that_it_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let flags = format!("profile {GPT} --budget 600000 -o profile.json");
    let flags = flags.replace("--budget 1 ", "");
    let mut child = command(folder.path(), flags.as_str())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.ends_with("; measuring\n") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    assert!(said.contains("4 layers: first run\n"), "{said}");
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(
        said.ends_with("stopped while measuring; nothing was written\n"),
        "{said}"
    );
    assert!(!folder.path().join("profile.json").exists());
}
