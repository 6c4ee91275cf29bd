//! `gpipe-rs generate`: a model continues a text.

use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::trained::{TEXT, run};
use super::{gpipe, printed};

fn generate(flags: &str) -> String {
    let mut args = vec!["generate", "--run", "run", "--prompt", "Call me"];
    args.extend(flags.split_whitespace());
    printed(run(), &args)
}

#[test]
fn a_model_that_learned_a_text_by_heart_recites_it() {
    let said = generate("--tokens 60 --temperature 0");
    let wanted: String = TEXT.repeat(5).chars().take(7 + 60).collect();
    assert_eq!(said, wanted + "\n");
    // Also from one of its checkpoints.
    let checkpoint = "generate --checkpoint run/checkpoints/step-00000120 --prompt me --tokens 8 \
                      --temperature 0";
    assert_eq!(printed(run(), checkpoint), "me Ishmael\n");
}

#[test]
fn a_seed_is_a_text_whatever_the_devices() {
    let flags = "--tokens 80 --temperature 3";
    let first = generate(&format!("{flags} --seed 1"));
    for devices in ["cpu", "cpu,cpu", "cpu,cpu,cpu"] {
        let again = generate(&format!("{flags} --seed 1 --devices {devices}"));
        assert_eq!(again, first, "{devices}");
    }
    assert_ne!(generate(&format!("{flags} --seed 2")), first);
    // A single character to draw from leaves nothing to chance.
    let greedy = generate("--tokens 80 --temperature 0");
    assert_ne!(first, greedy);
    assert_eq!(
        generate("--tokens 80 --temperature 3 --top-k 1 --seed 9"),
        greedy
    );
}

#[test]
fn json_has_the_same_text() {
    let object: Value = serde_json::from_str(&generate("--tokens 30 --json")).unwrap();
    assert_eq!(
        (&object["prompt"], &object["tokens"]),
        (&"Call me".into(), &30.into())
    );
    let text = object["text"].as_str().unwrap();
    assert_eq!(format!("Call me{text}\n"), generate("--tokens 30"));
    assert!(object["tokens_per_s"].as_f64().unwrap() > 0.0);
}

/// The text is printed as it is generated: the beginning of one that would take days can be read. It ends
/// without an error if the reader goes away.
#[test]
fn text_streams() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
        .args([
            "generate",
            "--run",
            "run",
            "--prompt",
            "Call",
            "--tokens",
            "1000000000",
        ])
        .current_dir(run())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begin = [0; 40];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut begin).unwrap();
    assert!(begin.starts_with(b"Call"));
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn what_cannot_be_gone_on_with_is_refused() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--prompt", ""], &["--prompt is empty"]),
        (
            &["--prompt", "Call me, 鯨"],
            &[
                "--prompt: the model does not know ',' (line 1, character 8)",
                "it knows \" !",
            ],
        ),
        (
            &["--prompt", "me", "--temperature", "-1"],
            &["--temperature", "from 0 up"],
        ),
        (
            &["--prompt", "me", "--tokens", "0"],
            &["--tokens", "at least 1"],
        ),
        (
            &["--prompt", "me", "--top-k", "0"],
            &["--top-k", "at least 1"],
        ),
        (
            &["--prompt", "me", "--devices", "cpu,cpu,cpu,cpu"],
            &["4 devices make as many stages", "only 3 layers"],
        ),
    ];
    for (flags, wanted) in cases {
        let args = [&["generate", "--run", "run"], flags].concat();
        super::refusal(&gpipe(run(), &args), &args.join(" "), wanted);
    }
}
