//! Printed commands must be valid in a shell, whatever the folder's name.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::run::{gpipe, succeeded};

/// A name that an unquoted shell would split and execute.
const NAME: &str = "my run $(touch PWN);it's `a` \"b\"";

/// The printed commands in backticks that name the hostile folder or file.
fn commands(output: &Output) -> Vec<String> {
    let (text, errors) = succeeded(output.clone(), "gpipe-rs");
    let text = text + "\n" + &errors;
    let quoted = format!("'{}'", NAME.replace('\'', r"'\''"));
    // The name itself contains backticks.
    let text = text.replace(&quoted, "HOSTILE");
    assert!(
        !text.contains("--run my") && !text.contains("--resume my"),
        "{text}"
    );
    let between = text.split('`').skip(1).step_by(2);
    let there = between.filter(|command| command.contains("HOSTILE"));
    there.map(|own| own.replace("HOSTILE", &quoted)).collect()
}

/// Runs a command in a shell, as a user who copies it would.
#[track_caller]
fn copied(folder: &Path, command: &str) {
    let own = Path::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", own.parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("PATH", path)
        .current_dir(folder);
    let output = shell.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    assert!(!folder.join("PWN").exists(), "{command}");
}

/// Runs the commands that `train` recommends for some data, with placeholders filled in.
#[track_caller]
fn train(folder: &Path, flags: &str, wanted: &[&str]) {
    let _ = fs::remove_dir_all(folder.join(NAME));
    let mut args: Vec<&str> = "train --steps 2 --batch 4 --micro 2 --out"
        .split(' ')
        .collect();
    args.push(NAME);
    args.extend(flags.split_whitespace());
    let told = commands(&gpipe(folder, &args));
    for wanted in wanted {
        let own = told.iter().find(|command| command.contains(wanted));
        let own = own.unwrap_or_else(|| panic!("{wanted}: {told:?}"));
        copied(
            folder,
            &own.replace(" TEXT", " the")
                .replace(" PATH", " d.csv")
                .replace(" N", " 3"),
        );
    }
    assert_eq!(told.len(), wanted.len(), "{told:?}");
}

/// Regression test: the line failed, or executed a hostile name.
#[test]
fn what_train_recommends_can_be_copied_whatever_its_folder_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("text.txt"), "the whale! up helm! ".repeat(80)).unwrap();
    let rows = (0..40).map(|row| format!("{row},{},{}\n", row * 7 % 5, row % 2));
    fs::write(
        folder.join("d.csv"),
        format!("a,b,y\n{}", rows.collect::<String>()),
    )
    .unwrap();
    let text = "--data text.txt --layers 1 --d-model 16 --heads 2 --seq 16";
    train(
        folder,
        text,
        &["train --resume '", "generate --run '", " --steps N"],
    );
    let table = "--model mlp --hidden 8 --depth 2 --data d.csv --eval-every 1";
    train(
        folder,
        table,
        &["train --resume '", "predict --run '", " --steps N"],
    );
}

#[test]
fn what_profile_and_plan_recommend_can_be_copied_whatever_their_files_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let args: Vec<&str> =
        "profile --model mlp --inputs 4 --hidden 8 --depth 2 --outputs 2 --batch 4 --quick"
            .split(' ')
            .collect();
    let plan = commands(&gpipe(folder, &[&args[..], &["--plan", NAME]].concat()));
    assert!(plan[0].starts_with("gpipe-rs train --plan '"), "{plan:?}");
    let sizes =
        " --model mlp --inputs 4 --hidden 8 --depth 2 --outputs 2 --batch 4 --steps 1 --out a";
    copied(folder, &(plan[0].clone() + sizes));
    let profile = commands(&gpipe(folder, &[&args[..], &["-o", NAME]].concat()));
    assert!(
        profile[0].starts_with("gpipe-rs plan --profile '"),
        "{profile:?}"
    );
    copied(folder, &(profile[0].clone() + " --devices 2"));
    fs::rename(folder.join(NAME), folder.join("profile.json")).unwrap();
    let plan = [
        "plan",
        "--profile",
        "profile.json",
        "--devices",
        "2",
        "--batch",
        "4",
        "--micro",
        "2",
        "-o",
        NAME,
    ];
    let plan = commands(&gpipe(folder, &plan));
    assert!(plan[0].starts_with("gpipe-rs train --plan '"), "{plan:?}");
    copied(
        folder,
        &(plan[0].clone() + &sizes.replace("--out a", "--out b")),
    );
}

/// Hints in error messages contain commands, too.
#[test]
fn hints_name_folders_as_a_shell_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begun = "train --model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2 --steps 1 --out a";
    assert!(gpipe(folder, begun).status.success());
    fs::rename(folder.join("a"), folder.join("it's a")).unwrap();
    for (args, hint) in [
        (vec!["train", "--out", "it's a"], r"--resume 'it'\''s a'"),
        (vec!["train", "it's a"], r"`--resume 'it'\''s a'`"),
        (
            vec!["train", "--weights", "it's a"],
            r"`export --run 'it'\''s a' -o DIR`",
        ),
        (vec!["eval", "--checkpoint", "it's a"], r"--run 'it'\''s a'"),
        (vec!["eval", "--weights", "it's a"], r"--run 'it'\''s a'"),
    ] {
        let output = gpipe(folder, &args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(hint), "{args:?}: {errors}");
    }
    fs::create_dir(folder.join("runs")).unwrap();
    fs::rename(folder.join("it's a"), folder.join("runs/it's a")).unwrap();
    let output = gpipe(folder, "eval");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains(r"--run 'runs/it'\''s a'"), "{errors}");
}
