//! Differences of a program between training and evaluation.

use super::program::{Argument, Node, Program};

/// Arguments that depend on the mode, and their values in evaluation.
const FLAGS: &[(&str, &str)] = &[
    ("dropout", "train"),
    ("dropout_", "train"),
    ("native_dropout", "train"),
    ("feature_dropout", "train"),
    ("feature_dropout_", "train"),
    ("alpha_dropout", "train"),
    ("alpha_dropout_", "train"),
    ("feature_alpha_dropout", "train"),
    ("feature_alpha_dropout_", "train"),
    ("rrelu", "training"),
    ("rrelu_", "training"),
    ("batch_norm", "training"),
    ("lstm", "train"),
    ("gru", "train"),
    ("rnn_tanh", "train"),
    ("rnn_relu", "train"),
    ("scaled_dot_product_attention", "dropout_p"),
];

/// Operators that draw random numbers in any mode.
const DRAW: &[&str] = &[
    "bernoulli",
    "bernoulli_",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "randint",
    "randint_like",
    "randperm",
    "uniform",
    "uniform_",
    "normal",
    "normal_",
    "normal_functional",
    "exponential_",
    "multinomial",
    "poisson",
    "random_",
    "log_normal_",
    "geometric_",
    "cauchy_",
];

/// Returns the argument of a node that differs in evaluation, and its value there.
pub(super) fn in_evaluation(node: &Node) -> Option<(&'static str, Argument)> {
    let (_, flag) = FLAGS.iter().find(|(name, _)| *name == node.operator())?;
    match node.argument(flag)? {
        Argument::Bool(true) if !keeps_statistics_of_batches(node) => {
            Some((flag, Argument::Bool(false)))
        }
        Argument::Float(p) if *p > 0.0 => Some((flag, Argument::Float(0.0))),
        _ => None,
    }
}

/// Whether a batch norm has no running statistics, and so always uses those of the batch.
fn keeps_statistics_of_batches(node: &Node) -> bool {
    let running = node.argument("running_mean");
    node.operator() == "batch_norm" && matches!(running, None | Some(Argument::None))
}

/// Whether a node draws random numbers, or may.
pub(super) fn draws(node: &Node) -> bool {
    let name = node.operator();
    DRAW.contains(&name) || FLAGS.iter().any(|(own, _)| *own == name)
}

/// Explains why a node cannot run in evaluation.
pub(super) fn no_evaluation(node: &Node) -> Option<String> {
    DRAW.contains(&node.operator()).then(|| {
        format!(
            "`{}` draws random numbers in evaluation too: export a second file after \
             `model.eval()` for it",
            node.operator()
        )
    })
}

/// Explains why a node cannot run in training on a GPU.
pub(super) fn no_training_on_gpus(node: &Node) -> Option<String> {
    let chance = match node.operator() {
        "scaled_dot_product_attention" => node.argument("dropout_p"),
        "lstm" | "gru" | "rnn_tanh" | "rnn_relu" => node.argument("dropout"),
        _ => None,
    };
    let Some(Argument::Float(p)) = chance else {
        return None;
    };
    (*p > 0.0).then(|| {
        format!(
            "`{}` with a dropout of {p} draws inside its kernel on a GPU, so that results would \
             depend on the cut: export the model without it",
            node.operator()
        )
    })
}

/// Explains why a program cannot be trained: its dropout and batch norms are disabled in the file.
pub(super) fn eval_only(program: &Program) -> Option<String> {
    let flag = |node: &Node| {
        let known = ["dropout", "dropout_", "feature_dropout", "batch_norm"];
        let flags = known.contains(&node.operator()).then(|| {
            let (_, flag) = FLAGS.iter().find(|(name, _)| *name == node.operator())?;
            node.argument(flag).cloned()
        });
        flags.flatten()
    };
    let flags: Vec<_> = program.nodes.iter().filter_map(flag).collect();
    let off = !flags.is_empty() && flags.iter().all(|flag| *flag == Argument::Bool(false));
    off.then(|| {
        "the file was exported in evaluation, with dropout and batch norm switched off: to train \
         it, export it after `model.train()`"
            .to_owned()
    })
}

/// Returns the smallest micro-batch in training: libtorch rejects batch statistics of a single value.
pub(super) fn fewest_in_training(program: &Program) -> usize {
    match fewest_places_of_batch_norm(program) {
        Some(1) => 2,
        _ => 1,
    }
}

/// Returns the smallest number of values per channel that a sample gives a training batch norm.
pub(super) fn fewest_places_of_batch_norm(program: &Program) -> Option<usize> {
    let places = |node: &Node| {
        let trains = matches!(node.argument("training"), Some(Argument::Bool(true)));
        let Some(Argument::Value(input)) = node.argument("input") else {
            return None;
        };
        let shape = program.values[input.0].example.as_ref()?;
        let places = usize::try_from(shape.iter().skip(2).product::<i64>()).ok()?;
        (node.operator() == "batch_norm" && trains).then_some(places)
    };
    program.nodes.iter().filter_map(places).min()
}
