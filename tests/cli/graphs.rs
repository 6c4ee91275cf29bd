//! `train --cuda-graphs`.

use std::path::Path;

use crate::run::{command, succeeded};

fn train(folder: &Path, out: &str, flags: &[&str]) -> (String, String) {
    let small = "train --model mlp --inputs 8 --hidden 16 --depth 2 --outputs 2 --batch 8 --micro 2 \
                 --steps 2 --threads-per-stage 1 --devices cpu,cpu --out";
    let mut command = command(folder, small);
    let output = command.arg(out).args(flags).output().unwrap();
    let told = succeeded(output, flags).1;
    let config = std::fs::read_to_string(folder.join(out).join("config.toml")).unwrap();
    (told, config)
}

#[test]
fn the_flag_is_a_key_and_each_stage_says_once_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (told, config) = train(folder.path(), "with", &["--cuda-graphs"]);
    for stage in 0..2 {
        let line = format!("stage {stage} runs without CUDA graphs: it computes on the CPU");
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    assert!(config.contains("cuda_graphs = true"), "{config}");
    let set = ["--set", "pipeline.cuda_graphs=true"];
    assert!(train(folder.path(), "set", &set).0.contains("CUDA graphs"));
    let (told, config) = train(folder.path(), "without", &[]);
    assert!(!told.contains("CUDA graphs"), "{told}");
    assert!(!config.contains("cuda_graphs"), "{config}");
}
