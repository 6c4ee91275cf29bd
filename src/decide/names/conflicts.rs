//! Reasons why two flags exclude each other, with an alternative.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags that exclude those of the second list, and the reason. A name without dashes is a
/// positional argument.
const REASONS: [(&[&str], &[&str], &str); 17] = [
    (
        &["schedule"],
        &["compare"],
        "--compare takes all schedules; leave one of them out",
    ),
    (
        &["plan"],
        &[
            "micro",
            "schedule",
            "chunks",
            "recompute",
            "balance",
            "offload",
            "cuda-graphs",
            "replicas",
        ],
        "the plan decides this already; leave one of them out, or make another plan with `plan`",
    ),
    (
        &["output"],
        &["json"],
        "each says where the answers go; leave one of them out (`--json > FILE` writes JSON to a file)",
    ),
    (
        &["epochs"],
        &["steps"],
        "each says how long to train; leave one of them out",
    ),
    (
        &["budget"],
        &["quick"],
        "--quick measures as few times as possible; leave one of them out",
    ),
    (
        &["run", "checkpoint"],
        &["checkpoint", "weights"],
        "each says where the trained model is; leave one of them out (`--run DIR --best` is the best \
         checkpoint of a run)",
    ),
    (
        &["steps"],
        &[
            "compare",
            "sweep",
            "jitter",
            "mtbf",
            "processes",
            "replicas",
            "nodes",
        ],
        "steps in a row are simulated for one schedule and one replica in one process, without jitter \
         and failures; leave one of them out",
    ),
    (
        &["profile"],
        &[
            "forward-us",
            "input-us",
            "weight-us",
            "output-bytes",
            "activation-bytes",
            "gradient-bytes",
        ],
        "the profile has the times and bytes of the layers; leave one of them out",
    ),
    (
        &["profile"],
        &[
            "tensor-parallel",
            "no-sequence-parallel",
            "optimizer-bytes",
            "tokens",
        ],
        "these are for models that --model-shape describes; a plan from a profile counts AdamW's memory, \
         and no groups of cards; leave one of them out",
    ),
    (
        &["cores"],
        &["nodes", "replicas"],
        "only the devices of one replica on one machine share cores; leave one of them out",
    ),
    (
        &["json"],
        &["format"],
        "--json is --format json; leave one of them out",
    ),
    (
        &["sweep"],
        &["compare"],
        "--sweep makes a table of its own, by default of all schedules; leave one of them out",
    ),
    (
        &["cluster", "per-node"],
        &[
            "cores",
            "host-link",
            "offload",
            "cuda-graphs",
            "tree",
            "processes",
        ],
        "this is for plans for --devices, not for a cluster; leave it out, or give --devices instead \
         of the cluster",
    ),
    (
        &["cluster"],
        &["per-node"],
        "--cluster says how many cards a node has; leave one of them out",
    ),
    (
        &["devices"],
        &[
            "cluster",
            "per-node",
            "pipeline",
            "micro-size",
            "shard-optimizer",
        ],
        "--devices is instead of a cluster (--cluster, or --nodes and --per-node); leave one of them \
         out",
    ),
    (
        &["model-shape"],
        &["devices"],
        "the costs of shapes are computed for known cards: name these with --cluster, a ready-made node \
         (rtx-4090, dgx-a100, …; --nodes N of it, --memory of each card) or a file that says what its \
         cards compute and move",
    ),
    (
        &["model-shape", "schedule"],
        &["profile", "FILE"],
        "each is instead of the other; leave one of them out",
    ),
];

fn reason(one: &str, other: &str) -> Option<&'static str> {
    let has = |names: &[&str], name: &str| names.contains(&name);
    let found = REASONS.iter().find(|(own, others, _)| {
        (has(own, one) && has(others, other)) || (has(own, other) && has(others, one))
    });
    found.map(|(.., why)| *why)
}

/// Returns the bare name: `--plan <FILE>` becomes `plan`, `[FILE]` becomes `FILE`.
fn name(shown: &str) -> &str {
    let name = shown.split([' ', '=']).next().unwrap_or_default();
    name.trim_start_matches('-')
        .trim_matches(['[', ']', '<', '>', '.'])
}

/// Adds the reason to the error, if two flags of a verb exclude each other.
pub(super) fn explained(error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(one)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let other = match error.get(ContextKind::PriorArg) {
        Some(ContextValue::String(other)) => Some(other),
        Some(ContextValue::Strings(others)) => others.first(),
        _ => None,
    };
    let Some((other, why)) = other.and_then(|own| Some((own, reason(name(one), name(own))?)))
    else {
        return error;
    };
    let flag = |shown: &str| {
        shown
            .split([' ', '='])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let message = format!("{} cannot be used with {}: {why}", flag(one), flag(other));
    // Without the verb's usage, which the reason makes superfluous.
    clap::Error::raw(ErrorKind::ArgumentConflict, message + "\n")
}

/// Returns the flags of a command and its verbs that exclude each other without a reason here.
pub fn unexplained(command: &Command) -> Vec<String> {
    let shown = |arg: &clap::Arg| name(&arg.to_string()).to_owned();
    let own = command.get_arguments().flat_map(|arg| {
        let others = command.get_arg_conflicts_with(arg);
        others
            .into_iter()
            .map(move |other| (shown(arg), shown(other)))
    });
    let own = own.filter(|(one, other)| reason(one, other).is_none());
    let own = own.map(|(one, other)| format!("{}: {one} and {other}", command.get_name()));
    let verbs = command.get_subcommands().flat_map(unexplained);
    own.chain(verbs).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{Cli, Verb};

    /// clap says only that two flags cannot be used together, not why nor what to do.
    #[test]
    fn flags_that_exclude_each_other_say_why() {
        let mut command = Cli::<Verb>::command();
        command.build();
        assert_eq!(unexplained(&command), [""; 0]);
        assert!(reason("micro", "plan").is_some() && reason("plan", "micro").is_some());
        assert_eq!(reason("micro", "steps"), None);
    }
}
