//! Checks that the configurations in `examples` train.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{metrics, printed};

#[test]
fn each_of_them_trains_evaluates_and_is_saved() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let files = fs::read_dir(root.join("examples")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let configs: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    assert!(configs.len() >= 3);
    for config in configs {
        let name = config.file_stem().unwrap().to_str().unwrap();
        let run = place.path().join(name);
        let (config, out) = (config.display().to_string(), run.display().to_string());
        // Its paths are relative to the repository.
        let args = [
            "train",
            "--config",
            &config,
            "--out",
            &out,
            "--steps",
            "2",
            "--eval-every",
            "1",
            "--warmup",
            "1",
            "--held-out-batches",
            "1",
            "--quiet",
            "--json",
        ];
        let told: Value = serde_json::from_str(&printed(root, &args)).unwrap();
        assert_eq!(told["steps"], 2, "{name}");
        assert!(told["best_step"].is_u64(), "{name}: {told}");
        let lines = metrics(place.path(), name);
        assert!(
            lines.iter().all(|line| line["held_out_loss"].is_f64()),
            "{name}"
        );
        assert!(run.join("best/manifest.json").exists(), "{name}");
    }
}
