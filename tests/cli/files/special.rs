//! Special files, names and texts, as others can leave them in a folder: nothing waits forever, nothing
//! outside is written, no terminal is controlled.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{TRAIN, ends, gpipe, printed, refused};
use crate::run::command;

const GPT: &str = "train --model gpt --layers 1 --d-model 8 --heads 2 --context 8 --batch 4 --micro 2 \
                   --devices cpu --threads-per-stage 1 --quiet --steps 2 --data t.txt";

fn ended(folder: &Path, args: &str) -> Output {
    ends(&mut command(folder, args))
}

/// A named pipe in place of a file; opening it waits for the other end.
fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

fn with_text() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = "the whale, the whale! ".repeat(40);
    fs::write(folder.path().join("t.txt"), text).unwrap();
    folder
}

fn event_file(run: &Path) -> PathBuf {
    let entries = fs::read_dir(run).unwrap().map(|entry| entry.unwrap());
    let mut names = entries.map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("events.out");
    names.find(is_one).unwrap()
}

/// Regression test: opening a pipe waits for a writer, so resuming a run hung forever.
#[test]
fn a_pipe_in_a_run_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    printed(folder, &format!("{TRAIN} --steps 2 --out run"));
    let run = folder.join("run");
    let files = ["metrics.jsonl", "checkpoints/.lock"].map(|file| run.join(file));
    for file in files.into_iter().chain([event_file(&run)]) {
        let aside = folder.join("aside");
        fs::rename(&file, &aside).unwrap();
        pipe(&file);
        let output = ended(folder, "train --resume run --steps 4 --quiet");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(errors.contains(name), "{name}: {errors}");
        assert!(errors.contains("not a file but a pipe"), "{name}: {errors}");
        fs::rename(&aside, &file).unwrap();
    }
    // The checkpoint has a copy of this one.
    pipe(&run.join("config.toml"));
    let output = ended(folder, "train --resume run --steps 4 --quiet");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(run.join("config.toml").is_file());
}

/// Likewise for data and initial weights; a device supplied endless bytes.
#[test]
fn pipes_and_devices_are_neither_data_nor_weights() {
    let folder = with_text();
    let folder = folder.path();
    let says = |args: &str, parts: &[&str]| {
        let errors = refused(&ended(folder, args), 2);
        for part in parts {
            assert!(errors.contains(part), "{args}: {part}: {errors}");
        }
    };
    pipe(&folder.join("p.txt"));
    pipe(&folder.join("p.u16.bin"));
    fs::write(folder.join("q.bin"), [0; 8]).unwrap();
    pipe(&folder.join("q.bin.json"));
    symlink("/dev/zero", folder.join("z.txt")).unwrap();
    for data in ["p.txt", "p.u16.bin", "q.bin", "z.txt"] {
        let args = GPT.replace("t.txt", data);
        says(&format!("{args} --out run"), &[data, "not a file but a"]);
    }
    printed(folder, &format!("{GPT} --out run"));
    printed(folder, "export --run run -o model");
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let path = folder.join("model").join(file);
        let aside = folder.join("aside");
        fs::rename(&path, &aside).unwrap();
        pipe(&path);
        let args = "eval --weights model --data t.txt --batch 4";
        says(args, &[file, "not a file but a pipe"]);
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        says(args, &[file, "not a file but a device"]);
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    assert!(!folder.join("runs").exists());
}

/// Regression test: an endless line used up all memory.
#[test]
fn a_line_of_metrics_without_an_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let errors = refused(&ended(folder.path(), "plot /dev/zero"), 2);
    assert!(errors.contains("/dev/zero, line 1"), "{errors}");
    // An explicitly named stream, such as `<(ssh host cat metrics.jsonl)`, is read in full.
    let script = "printf '{\"step\":1,\"loss\":2}\\n{\"step\":2,\"loss\":1}\\n' | \"$0\" plot /dev/stdin -o l.svg";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_gpipe-rs")]);
    let output = shell.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Regression test: a link that another user had left in the folder was followed, and its target overwritten.
#[test]
fn links_in_the_folder_of_a_run_are_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let victim = folder.join("victim");
    for name in ["config.new", "trace.json", "trace.new"] {
        fs::create_dir(folder.join("run")).unwrap();
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.join("run").join(name)).unwrap();
        printed(folder, &format!("{TRAIN} --steps 2 --out run"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
        for file in ["config.toml", "trace.json"] {
            let about = fs::symlink_metadata(folder.join("run").join(file)).unwrap();
            assert!(about.is_file(), "{file}");
        }
        fs::remove_dir_all(folder.join("run")).unwrap();
    }
    // These links are dangling, but exist.
    for name in ["metrics.jsonl", "config.toml", "checkpoints"] {
        fs::create_dir(folder.join("run")).unwrap();
        let nowhere = folder.join("nowhere");
        symlink(&nowhere, folder.join("run").join(name)).unwrap();
        let output = ended(folder, &format!("{TRAIN} --steps 2 --out run"));
        assert!(refused(&output, 2).contains("already holds a run"));
        assert!(!nowhere.exists(), "{name}");
        fs::remove_dir_all(folder.join("run")).unwrap();
    }
}

/// The checkpoint has the configuration of its weights. Regression test: `--resume` worked without the file,
/// but these three did not.
#[test]
fn a_run_without_its_configuration_can_be_used_as_it_can_be_resumed() {
    let folder = with_text();
    let folder = folder.path();
    printed(folder, &format!("{GPT} --out run"));
    let evaluate = "eval --run run --json";
    let whole = printed(folder, evaluate);
    fs::remove_file(folder.join("run/config.toml")).unwrap();
    assert_eq!(printed(folder, evaluate), whole);
    printed(folder, "export --run run -o model");
    printed(folder, "generate --run run --prompt the --tokens 3");
    printed(folder, "train --resume run --steps 3 --quiet");
    let errors = refused(&gpipe(folder, "eval --run model"), 2);
    assert!(errors.contains("no run folder"), "{errors}");
}

/// A forged manifest can have a valid seal. Regression test: without the part about the data the run silently
/// started from scratch, and a vocabulary of another type was ignored.
#[test]
fn parts_of_a_checkpoint_that_train_does_not_write_are_refused() {
    let folder = with_text();
    let folder = folder.path();
    printed(folder, &format!("{GPT} --out run"));
    let path = folder.join("run/checkpoints/step-00000002/manifest.json");
    let whole = fs::read(&path).unwrap();
    let forge = |change: &dyn Fn(&mut Value)| {
        let mut manifest: Value = serde_json::from_slice(&whole).unwrap();
        manifest.as_object_mut().unwrap().remove("blake3").unwrap();
        change(&mut manifest["parts"]);
        let text = serde_json::to_string_pretty(&manifest).unwrap();
        let text = text.strip_suffix("\n}").unwrap();
        let sum = blake3::hash(text.as_bytes()).to_hex();
        fs::write(&path, format!("{text},\n  \"blake3\": \"{sum}\"\n}}\n")).unwrap();
    };
    let says = |args: &str, part: &str| {
        let errors = refused(&gpipe(folder, args), 1);
        assert!(errors.contains(part), "{args}: {errors}");
    };
    let resume = "train --resume run --steps 4 --quiet";
    forge(&|parts| drop(parts.as_object_mut().unwrap().remove("data").unwrap()));
    says(resume, "the part `data` is missing");
    forge(&|parts| parts["vocabulary"] = json!(7));
    says(resume, "the part `vocabulary` is missing or not");
    says("eval --run run", "the part `vocabulary` is missing or not");
    forge(&|parts| parts["data"]["position"] = json!(u64::MAX));
    says(resume, "cannot be");
    fs::write(&path, &whole).unwrap();
    printed(folder, resume);
}

/// Regression test: a name that is not valid text was altered, and an existing file was reported with "No
/// such file".
#[test]
fn a_name_that_is_no_text_is_told_as_such() {
    let folder = with_text();
    let folder = folder.path();
    let name = OsStr::from_bytes(b"t\xff.txt");
    if fs::copy(folder.join("t.txt"), folder.join(name)).is_err() {
        println!("this file system has no such names");
        return;
    }
    let args = GPT.strip_suffix("t.txt").unwrap();
    let errors = refused(&ends(command(folder, args).arg(name)), 2);
    for part in ["data.path", "not UTF-8", "rename"] {
        assert!(errors.contains(part), "{errors}");
    }
}

/// Regression test: names in files were printed with their terminal control characters.
#[test]
fn texts_of_files_steer_no_terminal() {
    const EVIL: &str = "a\u{1b}]0;x\u{7}\u{202e}\u{9b}z";
    let folder = with_text();
    let folder = folder.path();
    let clean = |output: &Output| {
        let all = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8(all).unwrap();
        let steers = |c: &char| matches!(c, '\u{1b}' | '\u{7}' | '\u{202e}' | '\u{9b}');
        assert_eq!(text.chars().find(steers), None, "{text:?}");
        text
    };
    // A field of metrics.
    let line = json!({"step": 1, "loss": 1, EVIL: 2});
    fs::write(folder.join("m.jsonl"), format!("{line}\n")).unwrap();
    let unknown = gpipe(folder, "plot m.jsonl --metrics nothing");
    let told = clean(&unknown);
    assert!(told.contains("\\u001b"), "{told}");
    // A layer of a profile.
    let layer = |name: &str| {
        json!({"name": name, "forward_us": 9, "backward_input_us": 9, "backward_weight_us": 9,
               "parameter_bytes": 4, "activation_bytes": 4, "output_bytes": 4})
    };
    let layers = [layer("a\u{202e}b"), layer("c")];
    let profile = json!({"version": 1, "device": "cpu\u{202e}", "batch": 8, "layers": layers});
    fs::write(folder.join("p.json"), profile.to_string()).unwrap();
    clean(&gpipe(
        folder,
        "plan --profile p.json --devices 2 --micro 4",
    ));
    clean(&gpipe(
        folder,
        "simulate --profile p.json --schedule 1f1b --devices 2 --micro 4",
    ));
    // A tensor of weights.
    printed(folder, &format!("{GPT} --out run"));
    printed(folder, "export --run run -o model");
    let path = folder.join("model/model.safetensors");
    let tensor = gpipe::tch::Tensor::from_slice(&[1.0_f32]);
    gpipe::tch::Tensor::write_safetensors(&[(EVIL, &tensor)], &path).unwrap();
    let output = gpipe(folder, "eval --weights model --data t.txt");
    assert_eq!(output.status.code(), Some(2));
    clean(&output);
}

/// Regression test: the error about an existing folder came after building the model, which takes minutes and
/// gigabytes. Here no model can be built.
#[test]
fn a_folder_that_is_taken_is_told_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    printed(folder, &format!("{TRAIN} --steps 2 --out run"));
    let huge = TRAIN.replace("--hidden 8", "--hidden 4000000");
    let errors = refused(&ended(folder, &format!("{huge} --steps 2 --out run")), 2);
    assert!(errors.contains("already holds a run"), "{errors}");
    let fork = "train --resume run --out run/config.toml --set model.hidden=4000000";
    let errors = refused(&ended(folder, fork), 2);
    assert!(errors.contains("this is a file, not a folder"), "{errors}");
}
