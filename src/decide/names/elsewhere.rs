//! What the flags of other tools are called here.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use gpipe_partitioner::words::meant;

use super::conflicts;

/// What flags of other tools are here: each of the names, and what to write instead.
const ELSEWHERE: [(&[&str], &str); 41] = [
    (&["learning-rate", "max-lr"], "--lr RATE"),
    (
        &["lr-scheduler", "lr-scheduler-type", "lr-decay-style"],
        "--lr-schedule NAME",
    ),
    (
        &[
            "warmup-steps",
            "warmup-iters",
            "lr-warmup-iters",
            "num-warmup-steps",
        ],
        "--warmup N",
    ),
    (&["min-lr"], "--set lr.end=RATE"),
    (&["max-new-tokens", "max-tokens"], "--tokens N"),
    (
        &[
            "max-steps",
            "num-steps",
            "max-iters",
            "train-iters",
            "iterations",
            "total-steps",
        ],
        "--steps N",
    ),
    (
        &[
            "num-epochs",
            "num-train-epochs",
            "max-epochs",
            "epoch",
            "n-epochs",
        ],
        "--epochs E",
    ),
    (
        &[
            "global-batch-size",
            "train-batch-size",
            "per-device-train-batch-size",
            "bs",
        ],
        "--batch N",
    ),
    (
        &["micro-batch-size"],
        "--micro M: --batch over it are the samples of a micro-batch",
    ),
    (
        &[
            "gradient-accumulation-steps",
            "grad-accum",
            "accumulate-grad-batches",
            "num-microbatches",
            "n-microbatches",
            "microbatches",
        ],
        "--micro M: a mini-batch is that many micro-batches",
    ),
    (
        &[
            "grad-clip",
            "gradient-clip",
            "gradient-clip-val",
            "max-grad-norm",
            "clip-grad",
            "clip-grad-norm",
            "max-norm",
        ],
        "--clip NORM",
    ),
    (
        &[
            "gradient-checkpointing",
            "activation-checkpointing",
            "checkpoint-activations",
            "recompute-activations",
            "activation-checkpoint",
        ],
        "--recompute always",
    ),
    (&["fp16", "half"], "--precision fp16"),
    (
        &["bf16", "bfloat16", "amp", "mixed-precision"],
        "--precision bf16",
    ),
    (&["fp32", "float32"], "--precision f32"),
    (&["dtype"], "--precision NAME"),
    (&["mkldnn", "onednn"], "--kernels onednn"),
    (
        &["num-workers", "dataloader-num-workers", "n-workers"],
        "--workers N",
    ),
    (
        &["device", "gpu", "gpus", "num-gpus", "n-gpus", "accelerator"],
        "--devices LIST, such as cuda:0-3 or cpu*2",
    ),
    (
        &[
            "pp",
            "pipeline-parallel-size",
            "pipeline-model-parallel-size",
            "stages",
            "num-stages",
            "pp-size",
        ],
        "--devices LIST: a stage each",
    ),
    (
        &[
            "virtual-stages",
            "num-virtual-stages",
            "num-layers-per-virtual-pipeline-stage",
            "model-chunks",
        ],
        "--chunks V: stages of each device",
    ),
    (
        &[
            "dp",
            "data-parallel",
            "data-parallel-size",
            "ddp",
            "dp-size",
        ],
        "--replicas D",
    ),
    (
        &[
            "zero",
            "zero1",
            "zero-stage",
            "use-distributed-optimizer",
            "fsdp",
        ],
        "--shard-optimizer",
    ),
    (&["cpu-offload", "offload-activations"], "--offload STAGES"),
    (
        &["nproc-per-node", "world-size", "num-processes"],
        "`launch --processes N -- VERB …`",
    ),
    (
        &[
            "eval-interval",
            "eval-steps",
            "eval-freq",
            "val-every",
            "val-check-interval",
            "validate-every",
            "evaluation-strategy",
        ],
        "--eval-every N",
    ),
    (
        &[
            "val-data",
            "validation-data",
            "valid-data",
            "eval-file",
            "validation-file",
            "val",
            "test-data",
        ],
        "--eval-data PATH",
    ),
    (
        &[
            "early-stopping-patience",
            "early-stop",
            "early-stopping-rounds",
        ],
        "--early-stopping N",
    ),
    (
        &["val-split", "validation-split", "test-size", "val-ratio"],
        "--held-out SHARE",
    ),
    (&["eval-iters", "limit-val-batches"], "--held-out-batches N"),
    (
        &[
            "save-every",
            "save-steps",
            "save-interval",
            "checkpoint-interval",
            "ckpt-every",
        ],
        "--checkpoint-every N",
    ),
    (
        &["save-total-limit", "save-top-k", "keep-last"],
        "--checkpoint-keep K",
    ),
    (
        &[
            "output-dir",
            "out-dir",
            "run-dir",
            "save-dir",
            "log-dir",
            "logdir",
        ],
        "--out DIR",
    ),
    (
        &["resume-from-checkpoint", "resume-from", "ckpt-path", "load"],
        "--resume RUN",
    ),
    (
        &[
            "from-pretrained",
            "pretrained",
            "init-from",
            "model-name-or-path",
            "checkpoint-path",
        ],
        "--weights PATH",
    ),
    (
        &[
            "dataset",
            "train-data",
            "train-file",
            "data-path",
            "data-dir",
            "data-root",
        ],
        "--data PATH",
    ),
    (
        &[
            "block-size",
            "seq-len",
            "seq-length",
            "max-seq-len",
            "context-length",
            "max-length",
        ],
        "--context N",
    ),
    (
        &["n-layer", "n-layers", "num-layers", "num-hidden-layers"],
        "--layers N",
    ),
    (&["n-embd", "hidden-size", "embedding-dim"], "--d-model N"),
    (
        &["n-head", "n-heads", "num-heads", "num-attention-heads"],
        "--heads N",
    ),
    (
        &[
            "momentum",
            "nesterov",
            "beta1",
            "beta2",
            "betas",
            "eps",
            "adam-epsilon",
        ],
        "--set optimizer.KEY=VALUE: momentum, nesterov, beta1, beta2, eps",
    ),
];

/// The same error, with what a flag of another tool is called here, or where one stands.
pub(crate) fn explained(
    command: &Command,
    args: &[OsString],
    mut error: clap::Error,
) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {}
        ErrorKind::ArgumentConflict => return conflicts::explained(error),
        _ => return error,
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let unknown = unknown.split('=').next().unwrap_or_default();
    let texts = args.iter().filter_map(|arg| arg.to_str());
    let verb = texts.skip(1).find_map(|arg| command.find_subcommand(arg));
    let name = unknown.trim_start_matches('-').replace('_', "-");
    let tip = match verb {
        Some(verb) if !unknown.starts_with('-') => positional(verb, unknown),
        Some(verb) => tip(verb, &name).or_else(|| of_another(command, &name)),
        None => None,
    };
    let Some(tip) = tip else {
        return plain(error, &name);
    };
    error.remove(ContextKind::SuggestedArg);
    // The usage would say nothing beside the tip.
    error.remove(ContextKind::Usage);
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![tip.into()]),
    );
    error
}

/// The error without what clap guesses of a flag that is like none; a good guess needs no usage.
fn plain(mut error: clap::Error, name: &str) -> clap::Error {
    let Some(ContextValue::String(guess)) = error.get(ContextKind::SuggestedArg) else {
        return error;
    };
    let guess = guess.trim_start_matches('-').to_owned();
    if meant(name, [guess.as_str()]).is_none() {
        error.remove(ContextKind::SuggestedArg);
    }
    error.remove(ContextKind::Usage);
    error
}

/// What to write in place of a flag that this verb does not have.
fn tip(verb: &Command, name: &str) -> Option<String> {
    let (_, instead) = ELSEWHERE.iter().find(|(names, _)| names.contains(&name))?;
    let flag = instead.strip_prefix("--");
    let flag = flag.and_then(|flag| flag.split([' ', ':']).next());
    let has = |long: &str| verb.get_arguments().any(|arg| arg.get_long() == Some(long));
    let fits = flag.map_or(verb.get_name() == "train", has);
    fits.then(|| format!("instead of `--{name}`, write: {instead}"))
}

/// What a word without a flag is most likely to be.
fn positional(verb: &Command, word: &str) -> Option<String> {
    let flag = match verb.get_name() {
        "train" => "--data",
        "eval" | "generate" | "export" => "--run",
        "profile" => "--model",
        "plan" => "--profile",
        "simulate" => "--schedule",
        _ => return None,
    };
    Some(format!("write `{flag} {word}`, if that is what it is"))
}

/// Which verbs have a flag that this one does not.
fn of_another(command: &Command, name: &str) -> Option<String> {
    let has = |verb: &&Command| verb.get_arguments().any(|arg| arg.get_long() == Some(name));
    let verbs = command.get_subcommands().filter(has);
    let verbs: Vec<String> = verbs.map(|verb| format!("`{}`", verb.get_name())).collect();
    (!verbs.is_empty()).then(|| format!("`--{name}` is a flag of {}", verbs.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_another_tool_stands_twice() {
        let mut names: Vec<&str> = ELSEWHERE
            .iter()
            .flat_map(|(names, _)| *names)
            .copied()
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
