//! Precedence of configuration layers.

use super::{TINY, config, tiny, trained};

use std::fs;

#[test]
fn flags_win_over_set_over_the_environment_over_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(
        folder.join("low.toml"),
        "[train]\nsteps = 1\nseed = 1\nbatch = 8\n[optimizer]\nlr = 0.1\n[lr]\nwarmup = 1\n",
    )
    .unwrap();
    fs::write(
        folder.join("high.toml"),
        "train.seed = 2\ntrain.batch = 7\noptimizer.lr = 0.2\nlr.warmup = 2\n",
    )
    .unwrap();
    let variables = [
        ("GPIPE_TRAIN__BATCH", "6"),
        ("GPIPE_OPTIMIZER__LR", "0.3"),
        ("GPIPE_LR__WARMUP", "3"),
        ("GPIPE_HOME", "belongs to another program"),
    ];
    let files = ["--config", "low.toml", "--config", "high.toml"];
    let set = ["--set", "optimizer.lr=0.5", "--set", "lr.warmup=5"];
    let again = ["--set", "optimizer.lr=0.4"];
    let flags = ["--warmup", "4", "--out", "run"];
    let all = [&files[..], &set, &again, &flags].concat();
    trained(folder, &tiny(&["--steps", "--batch"], &all), &variables);
    let config = config(folder, "run");
    assert_eq!(config["train"]["steps"].as_integer(), Some(1));
    assert_eq!(config["train"]["seed"].as_integer(), Some(2));
    assert_eq!(config["train"]["batch"].as_integer(), Some(6));
    assert_eq!(config["optimizer"]["lr"].as_float(), Some(0.4));
    assert_eq!(config["lr"]["warmup"].as_integer(), Some(4));
}

#[test]
fn every_layer_takes_lists_and_sizes_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = "[model]\nname = \"mlp\"\nhidden = 6\ninputs = 5\n[pipeline]\ndevices = [\"cpu\"]\n";
    fs::write(folder.join("file.toml"), file).unwrap();
    let variables = [("GPIPE_MODEL__HIDDEN", "7"), ("GPIPE_PIPELINE__MICRO", "1")];
    let flags = ["--config", "file.toml", "--out", "run"];
    let set = ["--set", "pipeline.devices=cpu,cpu,cpu"];
    let list = ["--set", "pipeline.balance=[2, 1, 1]"];
    let flags = [&flags[..], &set, &list, &["--depth", "3"]].concat();
    let without = ["--model", "--inputs", "--hidden", "--depth", "--micro"];
    trained(folder, &tiny(&without, &flags), &variables);
    let config = config(folder, "run");
    let size = |name: &str| config["model"][name].as_integer().unwrap();
    assert_eq!((size("inputs"), size("hidden"), size("depth")), (5, 7, 3));
    let balance: Vec<i64> = config["pipeline"]["balance"].clone().try_into().unwrap();
    assert_eq!(balance, [2, 1, 1]);
    assert_eq!(config["pipeline"]["micro"].as_integer(), Some(1));
}

/// Regression test: five lines of keys repeated the line below them.
#[test]
fn a_line_says_what_is_trained_unless_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let told = trained(folder, &tiny(&[], &["--out", "a"]), &[]);
    assert!(told.starts_with("mlp: 3 layers over 2 stages "), "{told}");
    for part in [
        " batches of 4 in 2 micro-batches, schedule 1f1b, ",
        ", adamw\n",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let flags = ["--out", "c", "--schedule", "zb-h1", "--optimizer", "sgd"];
    let told = trained(folder, &tiny(&[], &flags), &[]);
    for given in [" schedule zb-h1, ", ", sgd\n"] {
        assert!(told.contains(given), "{given}: {told}");
    }
    let quiet = trained(folder, &tiny(&[], &["--out", "b", "--quiet"]), &[]);
    // The synthetic data's meaningless loss is a warning, and therefore stays.
    assert!(quiet.starts_with("data: made up once"), "{quiet}");
    assert_eq!(quiet.lines().count(), 1, "{quiet}");
}

/// A run's full configuration must not block a change of devices, schedule or model.
#[test]
fn what_went_with_a_value_that_is_changed_is_given_up_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = ["--out", "first", "--schedule", "zbv", "--depth", "4"];
    trained(folder, &tiny(&["--depth"], &first), &[]);
    let base = ["--config", "first/config.toml", "--out"];
    let over = |flags: &[&str]| trained(folder, &[&base[..], flags].concat(), &[]);

    let told = over(&["devices", "--devices", "cpu"]);
    let wanted = "pipeline.balance = [1, 1, 1, 2] (first/config.toml:16) went with \
                  pipeline.devices = [\"cpu\", \"cpu\"], and is chosen anew";
    assert!(told.contains(wanted), "{told}");
    assert_eq!(chunks_and_stages(&config(folder, "devices")), (2, 2));

    let told = over(&["schedule", "--schedule", "gpipe"]);
    let wanted = "pipeline.chunks = 2 (first/config.toml:15) went with pipeline.schedule = \"zbv\"";
    assert!(told.contains(wanted), "{told}");
    assert_eq!(chunks_and_stages(&config(folder, "schedule")), (1, 2));

    // The number of stages is unchanged, so the balance stays.
    let told = over(&["kept", "--schedule", "v-half", "--chunks", "2"]);
    assert!(!told.contains("not used"), "{told}");

    let told = over(&["size", "--depth", "5"]);
    assert!(told.contains("pipeline.balance"), "{told}");
    let told = over(&["model", "--model", "lstm", "--hidden", "8"]);
    assert!(told.contains("model.depth = 4"), "{told}");
    assert_eq!(
        config(folder, "model")["model"]["hidden"].as_integer(),
        Some(8)
    );

    // Sizes given without a model apply to any model.
    fs::write(
        folder.join("sizes.toml"),
        "[model]\nhidden = 8\nlayers = 2\n",
    )
    .unwrap();
    let flags = [
        "--config",
        "sizes.toml",
        "--model",
        "lstm",
        "--steps",
        "1",
        "--out",
        "sizes",
    ];
    let told = trained(folder, &flags, &[]);
    assert!(!told.contains("not used"), "{told}");
    assert_eq!(
        config(folder, "sizes")["model"]["hidden"].as_integer(),
        Some(8)
    );
}

fn chunks_and_stages(config: &toml::Table) -> (i64, usize) {
    let pipeline = &config["pipeline"];
    let balance = pipeline["balance"].as_array().unwrap();
    (pipeline["chunks"].as_integer().unwrap(), balance.len())
}

#[test]
fn every_flag_that_is_a_key_is_one_in_all_layers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(
        folder,
        &tiny(&[], &["--out", "flags", "--clip", "0.5"]),
        &[],
    );
    let text = fs::read_to_string(folder.join("flags/config.toml")).unwrap();
    let flags = TINY.split_whitespace().collect::<Vec<_>>();
    for pair in flags.chunks(2) {
        let name = pair[0].trim_start_matches("--").replace('-', "_");
        let name = if name == "model" { "name" } else { &name };
        let value = if name == "name" {
            format!("\"{}\"", pair[1])
        } else {
            pair[1].to_owned()
        };
        assert!(
            text.contains(&format!("\n{name} = {value}\n")),
            "{name}: {text}"
        );
    }
    assert!(text.contains("\nclip = 0.5\n"), "{text}");
}

/// Regression test: 0 was refused, so clipping could not be turned off in a resumed run.
#[test]
fn zero_takes_back_what_a_file_has_set() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let own = "[train]\nclip = 0.5\n[pipeline]\npatience = 60\n";
    fs::write(folder.join("run.toml"), own).unwrap();
    let zero = ["--clip", "0", "--patience", "0"];
    let set = tiny(&[], &["--config", "run.toml", "--out", "set"]);
    trained(folder, &set, &[]);
    let none = tiny(&[], &["--config", "run.toml", "--out", "none"]);
    trained(folder, &[&none[..], &zero].concat(), &[]);
    let of = |run: &str| {
        let own = config(folder, run);
        let (clip, patience) = (own["train"].get("clip"), own["pipeline"].get("patience"));
        (clip.is_some(), patience.is_some())
    };
    assert_eq!((of("set"), of("none")), ((true, true), (false, false)));
    let resumed = ["--resume", "set", "--steps", "4", "--clip", "0"];
    trained(folder, &resumed, &[]);
    assert_eq!(of("set"), (false, true));
}
