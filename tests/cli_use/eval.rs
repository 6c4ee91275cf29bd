//! `gpipe-rs eval`: the loss on text that was not trained on.

use std::fs;

use gpipe::checkpoint::Checkpoint;
use serde_json::Value;

use super::trained::{TEXT, checkpoints, held_out_loss, run};
use super::{printed, refused};

fn eval(flags: &str) -> Value {
    let text = printed(run(), &format!("eval --run run --json {flags}"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_held_out_loss_is_the_one_of_training_to_the_last_bit() {
    let checkpoint = Checkpoint::newest(checkpoints(&run().join("run"))).unwrap();
    let loss = held_out_loss(&checkpoint.weights().unwrap());
    for devices in ["cpu", "cpu,cpu,cpu"] {
        let told = eval(&format!("--devices {devices}"));
        assert_eq!(told["loss"].as_f64(), Some(loss), "{devices}");
        assert_eq!(told["perplexity"].as_f64(), Some(loss.exp()));
        let bits = told["bits_per_character"].as_f64().unwrap();
        assert!((bits - loss.exp().log2()).abs() < 1e-12);
        assert_eq!(told["step"], 120);
        // 102 characters are held out, which is 6 sequences and what follows the last.
        assert_eq!(told["characters"], 6 * 16);
    }
    let lines = printed(run(), "eval --run run");
    let wanted = format!("loss         {loss:.4} per character\n");
    assert!(lines.contains(&wanted), "{lines}");
    assert!(lines.contains("characters, held out)") && lines.contains("of step 120"));
}

#[test]
fn all_of_another_text_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.txt");
    let shown = file.display().to_string();
    let of = |text: &str| {
        fs::write(&file, text).unwrap();
        eval(&format!("--data {shown}"))
    };
    let known = of(&TEXT.repeat(3));
    assert_eq!(known["characters"], TEXT.len() * 3 - 1);
    assert_eq!(known["data"], shown);
    let backwards: String = TEXT.repeat(3).chars().rev().collect();
    let odd = of(&backwards);
    let loss = |told: &Value| told["loss"].as_f64().unwrap();
    assert!(loss(&odd) > 5.0 * loss(&known), "{odd} {known}");
    assert_eq!(of("me")["characters"], 1);
    assert!(printed(run(), &format!("eval --run run --data {shown}")).contains("(1 characters)"));
    for (text, wanted) in [
        ("m", "the text is too short"),
        ("", "the text is too short"),
        ("Call\n", "does not know '\\n' (line 1, character 5)"),
    ] {
        fs::write(&file, text).unwrap();
        refused(
            run(),
            &format!("eval --run run --data {shown}"),
            &["--data ", wanted],
        );
    }
    refused(
        run(),
        "eval --run run --data nowhere.txt",
        &["--data nowhere.txt: cannot be read"],
    );
}
