//! Misspelt flags are answered with the right one.

use std::path::Path;

use super::gpipe;

#[test]
fn a_misspelt_flag_is_answered_with_the_nearest() {
    let verbs = [
        "profile --model mlp",
        "plan --profile profile.json",
        "simulate --schedule 1f1b",
        "train",
    ];
    for verb in verbs {
        for (wrong, right) in [("--devcies", "--devices"), ("--mico", "--micro")] {
            let output = gpipe(Path::new("."), &format!("{verb} {wrong} 2"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb} {wrong}: {errors}");
            assert!(output.stdout.is_empty());
            assert!(errors.contains(&format!("'{wrong}'")), "{verb}: {errors}");
            let tip = format!("similar argument exists: '{right}'");
            assert!(errors.contains(&tip), "{verb} {wrong}: {errors}");
        }
    }
}

#[test]
fn a_misspelt_verb_is_answered_with_the_nearest() {
    for (wrong, right) in [
        ("profle", "profile"),
        ("plna", "plan"),
        ("simulat", "simulate"),
        ("help trian", "train"),
    ] {
        let output = gpipe(Path::new("."), wrong);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let named = |quote: char| errors.contains(&format!("exists: {quote}{right}{quote}"));
        assert!(named('\'') || named('`'), "{wrong}: {errors}");
    }
}

/// Flags that users of other tools typed, which got no answer or a wrong one.
#[test]
fn what_is_no_flag_or_no_value_is_answered_with_what_was_meant() {
    for (args, wanted) in [
        ("train --layers 1 --model nope.pt2", "--model nope.pt2: "),
        ("train --model d.npz", "a .npz is data: give it as --data"),
        ("train run", "write `--resume run`, if that is what it is"),
        (
            "train m.pt2",
            "write `--model m.pt2`, if that is what it is",
        ),
        (
            "train c.toml",
            "write `--config c.toml`, if that is what it is",
        ),
        (
            "train --tokenizer nothere.json",
            "nothere.json: there is no such file or folder",
        ),
        (
            "train --replicas 2 --devices cpu*4",
            "give --tree 2 leaves or more",
        ),
        ("train gpt2", "write `--model gpt2`, if that is what it is"),
        ("eval", "tip: the newest run is runs/3: --run runs/3"),
        (
            "generate --prompt a",
            "tip: the newest run is runs/3: --run runs/3",
        ),
        (
            "train text.txt",
            "write `--data text.txt`, if that is what it is",
        ),
        (
            "simulate --devices 4 --micro 8 --format yaml",
            "tip: there are text, svg, html, trace, json",
        ),
        (
            "simulate --devices 4 --micro 8 --format htm",
            "tip: did you mean `html`? There are text, svg,",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("d.npz"), [0x50, 0x4b, 3, 4, 0xff]).unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        std::fs::write(folder.path().join("run/config.toml"), "").unwrap();
        std::fs::create_dir_all(folder.path().join("runs/3")).unwrap();
        std::fs::write(folder.path().join("runs/3/config.toml"), "").unwrap();
        let output = gpipe(folder.path(), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains(wanted), "{args}: {errors}");
        assert!(!errors.contains("--layers: the sizes"), "{args}: {errors}");
    }
}

/// Regression test: the messages were correct but did not help.
#[test]
fn what_is_missing_or_stands_in_the_wrong_place_is_told_with_a_line_that_works() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("plan.json"), "{\"balance\": [1]}").unwrap();
    let without_profile = "`plan --model-shape llama2-7b --cluster rtx-4090 --nodes 2 --batch 64`";
    for (args, wanted) in [
        ("plan", without_profile),
        ("plan --cluster dgx-a100", without_profile),
        (
            "launch --processes 2 train --steps 1",
            "put `--` before the verb: launch --processes 2 -- train --steps 1",
        ),
        ("schedule show plan.json", "plan.json: this is JSON"),
        (
            "schedule show ZBV",
            "ZBV: there is no such file; the built-in schedule is `--schedule zbv`",
        ),
        (
            "train --data lost.txt",
            "error: --data: cannot read lost.txt: ",
        ),
    ] {
        let output = gpipe(folder, args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains(wanted), "{args}: {errors}");
    }
    let output = gpipe(Path::new("."), without_profile.trim_matches('`'));
    assert!(output.status.success(), "{output:?}");
}

/// Regression test: the nearest flag was unrelated: `--depth` for `--epochs`, `--dropout` for `--fp16`.
#[test]
fn flags_of_other_tools_are_answered_with_what_they_are_here() {
    for (verb, other, right) in [
        ("train", "--learning_rate", "write `--lr`"),
        ("train", "--num_workers=4", "write `--workers`"),
        ("train", "--gradient-checkpointing", "--recompute always"),
        ("train", "--fp16", "--precision fp16"),
        ("train", "--world-size", "launch --processes N"),
        ("plan --profile p.json", "--gpus", "--devices LIST"),
        ("train", "--pp", "--devices N, a stage each"),
        ("train", "--gradient-accumulation-steps", "--micro M"),
        ("train", "--fsdp", "as ZeRO-1 does"),
        (
            "",
            "--steps",
            "`--steps` is a flag of `train`, `simulate`: write the verb before it: gpipe-rs train --steps 2",
        ),
    ] {
        let output = gpipe(Path::new("."), &format!("{verb} {other} 2"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{other}: {errors}");
        let tip = errors.lines().find(|line| line.contains("tip:"));
        assert!(
            tip.is_some_and(|tip| tip.contains(right)),
            "{other}: {errors}"
        );
        assert!(!errors.contains("similar argument"), "{errors}");
        // The verb's usage must not follow.
        assert!(!errors.contains("Usage:"), "{errors}");
    }
    // A word that is not a misspelt flag must not be answered with a flag, such as `--set`.
    let output = gpipe(Path::new("."), "train --best");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(!errors.contains("--set"), "{errors}");
    // A verb must not propose a flag that it lacks.
    let output = gpipe(Path::new("."), "env --fp16");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("--precision"));
}

/// Regression test: `gpipe-rs resume` was answered with the usage.
#[test]
fn verbs_of_other_tools_are_answered_with_what_does_the_same() {
    for (other, right) in [
        ("resume runs/1", "train --resume RUN"),
        ("fit", "gpipe-rs train"),
        ("test", "eval --run RUN"),
        ("chat", "generate --run RUN"),
        ("classify", "predict --run RUN PATH"),
        ("serve", "export --run RUN"),
        ("Benchmark", "profile --model NAME"),
        ("torchrun", "launch --processes N"),
        ("inspect", "plot RUN"),
    ] {
        let output = gpipe(Path::new("."), other);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{other}: {errors}");
        let tip = errors.lines().find(|line| line.contains("tip:"));
        assert!(
            tip.is_some_and(|tip| tip.contains("write: ") && tip.contains(right)),
            "{other}: {errors}"
        );
        assert!(!errors.contains("Usage:"), "{errors}");
    }
}

/// Regression test: `--memory 10` meant ten bytes, and other values were answered with lists.
#[test]
fn values_of_other_tools_are_answered_with_what_they_are_here() {
    let plan = "plan --profile p.json --devices 2 --memory 10";
    for (args, right) in [
        ("train --devices gpu", "did you mean `cuda`?"),
        (
            "plan --profile p.json --devices gpu:0-3",
            "did you mean `cuda:0-3`?",
        ),
        ("train --schedule zero-bubble", "did you mean `zb-h1`?"),
        ("train --precision bf16-mixed", "did you mean `bf16`?"),
        ("train --precision 32-true", "did you mean `f32`?"),
        ("train --memory 10", "write 10GiB or 10MiB"),
        (plan, "write 10GiB or 10MiB"),
        (
            "simulate --compare --devices 2 --micro 4 --memory 80",
            "write 80GiB or 80MiB",
        ),
        (
            "train --model bert",
            "any other one comes from PyTorch as a .pt2",
        ),
        ("train --model resnet", "did you mean `resnet50`?"),
        ("train --schedule dapple", "did you mean `1f1b`?"),
        ("train --schedule quux", "v-min, dualpipe-v or auto\n"),
        (
            "simulate --devices 2 --micro 2 --schedule quux",
            "forward-only (without training)",
        ),
        ("train --devices 2x", "`2x`: did you mean `cpu*2`?"),
        (
            "train --data imdb",
            "nothing is downloaded: save the data set first",
        ),
        (
            "train --model resnet50 --data CIFAR-10",
            "nothing is downloaded",
        ),
        (
            "train --lr -1e-3",
            "'-1e-3' for '--lr <RATE>': must be a number above 0",
        ),
        ("train --learning-rate x", "for '--lr <RATE>'"),
    ] {
        let output = gpipe(Path::new("."), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains(right), "{args}: {errors}");
    }
}

/// Regression test: clap proposed `--depth` for `profile --epochs`, and nothing for a word without a flag.
/// For `--sweep` alone it did not say which value is needed.
#[test]
fn a_flag_without_its_value_says_what_the_value_is() {
    for (line, says) in [
        (
            "simulate --devices 4 --sweep",
            "devices, micro, schedule, chunks, jitter",
        ),
        ("plan --profile profile.json --memory", "such as 22GiB"),
        ("train --devices", "tip: --devices <"),
        ("train --resume", "tip: --resume <RUN>: Resumes the run"),
        // `--lr` takes `-1e-3`, and so took the next flag.
        (
            "train --lr --steps 3",
            "tip: `--lr` has no value: write one between it and `--steps`",
        ),
        (
            "simulate --devices 2 --micro 2",
            "tip: name a schedule, such as --schedule 1f1b, or take --compare",
        ),
        (
            "schedule show",
            "tip: name the file of a schedule; `show`, `check` and `export` also take a built-in",
        ),
    ] {
        let output = gpipe(Path::new("."), line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(errors.contains("tip: "), "{line}: {errors}");
        assert!(errors.contains(says), "{line}: {errors}");
    }
}

#[test]
fn what_belongs_to_another_verb_or_to_a_flag_is_answered_with_where() {
    for (args, right) in [
        ("train mine.txt", "--data mine.txt"),
        ("eval runs/1", "--run runs/1"),
        ("plan p.json", "--profile p.json"),
        ("profile --epochs 3", "`--epochs` is a flag of `train`"),
        ("generate --run runs/1 cat", "--prompt cat"),
        (
            "train --data mine.txt --devices cpu cuda",
            "--devices cpu,cuda",
        ),
        (
            "simulate --devices 4 --sweep micro 8,16",
            "--sweep micro=8,16",
        ),
    ] {
        let output = gpipe(Path::new("."), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        let tip = errors.lines().find(|line| line.contains("tip:"));
        assert!(
            tip.is_some_and(|tip| tip.contains(right)),
            "{args}: {errors}"
        );
    }
}

#[test]
fn flags_have_the_names_of_the_field_besides() {
    let here = Path::new(".");
    let printed = |args: &str| gpipe(here, args).stdout;
    let own = printed("simulate --schedule zbv --devices 2 --micro 4 --chunks 2");
    assert!(!own.is_empty());
    let other =
        printed("simulate --schedule zbv --devices 2 --micro-batches 4 --stages-per-device 2");
    assert_eq!(own, other);
}
