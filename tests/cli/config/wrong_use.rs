//! Invalid configurations exit with code 2 and one line that gives the place and a suggestion.

use super::train;

use std::fs;

#[track_caller]
fn refused(flags: &[&str], variables: &[(&str, &str)], file: &str, wanted: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), file).unwrap();
    let output = train(folder.path(), flags, variables);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
    let line = errors.lines().next().unwrap();
    for part in wanted {
        assert!(line.contains(part), "`{line}` does not say `{part}`");
    }
    assert!(
        !folder.path().join("runs").exists(),
        "nothing is left behind"
    );
}

/// A file, and the expected parts of the message.
type Case = (&'static str, &'static [&'static str]);

const NAMES: [Case; 9] = [
    (
        "[train]\n\nstepz = 5\n",
        &["run.toml:3: there is no key `train.stepz`: did you mean `train.steps`? [train] has"],
    ),
    (
        "[trian]\nsteps = 5\n",
        &[
            "run.toml:2: there is no table `trian`: did you mean `train.steps`?",
            "model, loss, pipeline",
        ],
    ),
    (
        "[trian]\n",
        &["run.toml:1: there is no table `trian`: did you mean `train`?"],
    ),
    (
        "steps = 5\n",
        &["run.toml:1: `steps` stands in no table: did you mean `train.steps`?"],
    ),
    ("[train]\nlr = 0.1\n", &["did you mean `optimizer.lr`?"]),
    // Of several tables with the key, the one with the most similar name is suggested.
    (
        "[lrr]\nschedule = \"cosine\"\n",
        &["did you mean `lr.schedule`?"],
    ),
    (
        "stpes = 5\n",
        &["run.toml:1: there is no key `stpes`: did you mean `train.steps`?"],
    ),
    (
        "[train.steps]\nall = 5\n",
        &["run.toml:2: there is no key `train.steps.all`"],
    ),
    ("train = 5\n", &["run.toml:1: `train` is a table of keys"]),
];

const VALUES: [Case; 15] = [
    (
        "[train]\nsteps = \"5\"\n",
        &["run.toml:2: train.steps = \"5\": must be a whole number, not a text"],
    ),
    (
        "[train]\nsteps = 2.5\n",
        &["must be a whole number, not a number"],
    ),
    (
        "[train]\nsteps = 0\n",
        &["run.toml:2: train.steps = 0: must be at least 1"],
    ),
    (
        "[train]\nseed = -1\n",
        &[
            "run.toml:2: train.seed = -1",
            "from 0 to 18446744073709551615",
        ],
    ),
    (
        "[train]\nclip = -1\n",
        &["run.toml:2: train.clip = -1: must be a number above 0, or 0 for none"],
    ),
    (
        "[optimizer]\nlr = nan\n",
        &["optimizer.lr = nan: must be a number above 0"],
    ),
    (
        "[pipeline]\ndevices = [[1]]\n",
        &["a list has texts, numbers, true or false"],
    ),
    (
        "[pipeline]\nschedule = \"1f2b\"\n",
        &["run.toml:2:", "did you mean `1f1b`?"],
    ),
    (
        "[pipeline]\nrecompute = [true, 1]\n",
        &["one of never, except-last, always"],
    ),
    (
        "[model]\nlayerz = 2\n",
        &["run.toml:2: there is no key `model.layerz`: did you mean `model.layers`?"],
    ),
    (
        "[model]\nfilters = 2\n",
        &["run.toml:2: the model `gpt` has no size `filters`"],
    ),
    (
        "[model]\ndropout = 1.0\n",
        &["run.toml:2: `dropout=1.0`: must be a number from 0 to below 1"],
    ),
    (
        "[train]\nsteps = 1\nsteps = 2\n",
        &["run.toml:3: is no TOML: duplicate key"],
    ),
    ("[train\n", &["run.toml:1: is no TOML"]),
    (
        "[pipeline]\nplan = \"p.json\"\nmicro = 2\n",
        &["run.toml:3: the plan (run.toml:2) decides pipeline.micro already"],
    ),
];

#[test]
fn in_a_file_with_its_line() {
    for (text, wanted) in NAMES.into_iter().chain(VALUES) {
        refused(&["--config", "run.toml"], &[], text, wanted);
    }
    // Also if a flag overrides the value.
    refused(
        &["--config", "run.toml", "--steps", "3"],
        &[],
        "[train]\nsteps = 0\n",
        &["run.toml:2"],
    );
    refused(
        &["--config", "no.toml"],
        &[],
        "",
        &["--config no.toml: cannot be read: No such file"],
    );
    refused(
        &["--config", "run.toml"],
        &[],
        "\0",
        &["run.toml:1: is no TOML"],
    );
}

#[test]
fn in_the_environment_with_the_variables_name() {
    for (name, value, wanted) in [
        (
            "GPIPE_TRAIN__STEP",
            "5",
            "GPIPE_TRAIN__STEP: there is no key `train.step`: did you mean `train.steps`?",
        ),
        (
            "GPIPE_TRIAN__STEPS",
            "5",
            "GPIPE_TRIAN__STEPS: there is no table `trian`: did you mean `train.steps`?",
        ),
        (
            "GPIPE_TRAIN__STEPS",
            "many",
            "GPIPE_TRAIN__STEPS: train.steps = many: `many` is not a whole number",
        ),
        (
            "GPIPE_TRAIN__STEPS",
            "",
            "GPIPE_TRAIN__STEPS: train.steps = : `` is not a whole number",
        ),
        (
            "GPIPE_TRAIN_STEPS",
            "5",
            "GPIPE_TRAIN_STEPS: two underlines stand between table and key: did you mean GPIPE_TRAIN__STEPS?",
        ),
    ] {
        refused(&[], &[(name, value)], "", &[wanted]);
    }
}

#[test]
fn in_set_with_what_was_set() {
    for (setting, wanted) in [
        (
            "train.stepz=5",
            "--set train.stepz=5: there is no key `train.stepz`: did you mean `train.steps`?",
        ),
        // Regression test: the hint named a table, `model`.
        (
            "stpes=5",
            "--set stpes=5: there is no key `stpes`: did you mean `train.steps`?",
        ),
        (
            "modle=gpt",
            "--set modle=gpt: there is no table `modle`: did you mean `model`?",
        ),
        (
            "trian.stepz=5",
            "--set trian.stepz=5: there is no table `trian`: did you mean `train.steps`?",
        ),
        (
            "train.steps",
            "--set train.steps: write a key and its value, such as `train.steps=5`",
        ),
        (
            "train.steps=5.5",
            "--set train.steps=5.5: `5.5` is not a whole number",
        ),
        (
            "train.steps=\"5\"",
            "--set train.steps=\"5\": must be a whole number, not a text",
        ),
        (
            "pipeline.devices=[\"cpu\", \"gpu\"]",
            "unknown device `gpu`",
        ),
    ] {
        refused(&["--set", setting], &[], "", &[wanted]);
    }
    let flags = ["--set", "pipeline.plan=p.json", "--micro", "2"];
    refused(
        &flags,
        &[],
        "",
        &["--micro: the plan (--set pipeline.plan=p.json) decides pipeline.micro already"],
    );
}
