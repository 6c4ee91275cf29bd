//! Headings for the flags of verbs with many flags, and a short help beside the long one.

use clap::Arg;

/// Headings, with the flags below them, in every verb that has many.
const HEADINGS: [(&str, &[&str]); 10] = [
    (
        "Model",
        &[
            "model",
            "weights",
            "loss",
            "ignore-index",
            "profile",
            "scale-to",
            "model-shape",
            "tokens",
        ],
    ),
    (
        "Pipeline",
        &[
            "devices",
            "micro",
            "schedule",
            "chunks",
            "balance",
            "recompute",
            "precision",
            "kernels",
            "cuda-graphs",
            "threads-per-stage",
            "patience",
            "plan",
            "memory",
            "memory-reserve",
            "offload",
            "tf32",
            "deterministic",
            "offload-optimizer",
        ],
    ),
    (
        "Replicas and machines",
        &[
            "replicas",
            "shard-optimizer",
            "local-steps",
            "outer-learning-rate",
            "outer-momentum",
            "tree",
            "cluster",
            "nodes",
            "per-node",
            "pipeline",
            "tensor-parallel",
            "no-sequence-parallel",
            "optimizer-bytes",
            "micro-size",
            "speed",
            "cores",
            "link",
            "node-link",
            "nic-per-device",
            "neighbours",
            "all-reduce",
            "host-link",
            "processes",
        ],
    ),
    (
        "Times and bytes",
        &[
            "forward-us",
            "input-us",
            "weight-us",
            "output-bytes",
            "activation-bytes",
            "gradient-bytes",
        ],
    ),
    (
        "Jitter and failures",
        &[
            "jitter",
            "jitter-runs",
            "jitter-seed",
            "mtbf",
            "checkpoint-time",
            "restart-time",
        ],
    ),
    ("Measuring", &["quick", "low-memory", "budget"]),
    (
        "Training",
        &[
            "steps",
            "epochs",
            "batch",
            "seed",
            "clip",
            "optimizer",
            "lr",
            "weight-decay",
            "lr-schedule",
            "warmup",
        ],
    ),
    (
        "Data",
        &[
            "data",
            "tokenizer",
            "target",
            "drop-columns",
            "missing",
            "shuffle",
            "held-out",
            "held-out-batches",
            "normalise",
            "augment",
            "workers",
            "prefetch",
        ],
    ),
    ("Evaluation", &["eval-every", "eval-data", "early-stopping"]),
    (
        "Files and output",
        &[
            "checkpoint-every",
            "checkpoint-keep",
            "peak-flops",
            "config",
            "set",
            "resume",
            "resume-fallback",
            "out",
            "output",
            "trace",
            "report",
            "log-every",
            "quiet",
            "json",
            "format",
            "compare",
            "sweep",
        ],
    ),
];

/// Puts a flag below its heading, with the first sentence of its help as the short help; flags that
/// most people never need are only in the long help.
pub(super) fn grouped(verb: &str, arg: Arg) -> Arg {
    let long = arg.get_long().unwrap_or_default().to_owned();
    let heading = HEADINGS
        .iter()
        .find(|(_, flags)| flags.contains(&long.as_str()));
    let arg = match (arg.get_help_heading(), heading) {
        (None, Some((heading, _))) => arg.help_heading(*heading),
        _ => arg,
    };
    let short = SHORT.iter().find(|(own, _)| *own == verb);
    let is_rare = match short {
        Some((_, flags)) => !flags.contains(&long.as_str()),
        None => RARE.contains(&long.as_str()),
    };
    let arg = if is_rare {
        arg.hide_short_help(true)
    } else {
        arg
    };
    let Some(full) = arg.get_help().map(ToString::to_string) else {
        return arg;
    };
    let short = first_sentence(&full).to_owned();
    if arg.get_long_help().is_some() || short == full {
        return arg;
    }
    arg.help(short).long_help(full)
}

/// Flags in the short help of verbs with very many.
const SHORT: [(&str, &[&str]); 1] = [(
    "train",
    &[
        "model",
        "weights",
        "loss",
        "devices",
        "micro",
        "schedule",
        "balance",
        "recompute",
        "precision",
        "plan",
        "steps",
        "epochs",
        "batch",
        "optimizer",
        "lr",
        "data",
        "target",
        "eval-every",
        "eval-data",
        "config",
        "resume",
        "out",
        "report",
        "json",
    ],
)];

/// Flags of other verbs that most people never need.
const RARE: [&str; 35] = [
    "all-reduce",
    "augment",
    "checkpoint-keep",
    "cores",
    "cuda-graphs",
    "deterministic",
    "gradient-bytes",
    "held-out-batches",
    "ignore-index",
    "jitter-runs",
    "jitter-seed",
    "kernels",
    "local-steps",
    "neighbours",
    "nic-per-device",
    "no-sequence-parallel",
    "offload",
    "offload-optimizer",
    "optimizer-bytes",
    "outer-learning-rate",
    "outer-momentum",
    "patience",
    "peak-flops",
    "prefetch",
    "resume-fallback",
    "scale-to",
    "set",
    "shard-optimizer",
    "shuffle",
    "tf32",
    "threads-per-stage",
    "tokenizer",
    "trace",
    "tree",
    "workers",
];

/// Returns the first sentence of a help text, such as `Devices, a stage and a thread each`.
fn first_sentence(text: &str) -> &str {
    let mut open = 0_i32;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => open += 1,
            ')' => open -= 1,
            '.' | ';' if open == 0 && text[at + 1..].starts_with(' ') => return &text[..at],
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_before_what_explains_it() {
        assert_eq!(
            first_sentence("Devices: `cpu*2`; may repeat"),
            "Devices: `cpu*2`"
        );
        assert_eq!(first_sentence("Rate. The highest"), "Rate");
        assert_eq!(first_sentence("Such as 3.5"), "Such as 3.5");
        // Regression: the short help of `--chunks` was `Stages of each device (virtual stages`.
        assert_eq!(
            first_sentence("Stages (virtual; or not); by default 1"),
            "Stages (virtual; or not)"
        );
    }
}
