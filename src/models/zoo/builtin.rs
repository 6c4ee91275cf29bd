//! The models that come with the library.

use super::{Entry, Instance, Settings, Synthetic, class_cross_entropy, token_cross_entropy};
use crate::models::{Gpt, Mlp, gpt2, mlp};

pub(super) fn entries() -> Vec<Entry> {
    vec![gpt_entry(), mlp_entry()]
}

/// Tokens in, the next tokens as targets.
fn language_model(model: crate::Sequential, time: i64, vocab: i64) -> Instance {
    let tokens = || Synthetic::classes([time], vocab);
    Instance::new(model, tokens(), tokens(), token_cross_entropy)
}

fn gpt_entry() -> Entry {
    let make = |sizes: &Settings| {
        let (context, vocab) = (sizes.count("context"), sizes.count("vocab"));
        let (d_model, heads) = (sizes.count("d_model"), sizes.count("heads"));
        anyhow::ensure!(
            d_model % heads == 0,
            "d_model {d_model} is not a multiple of heads {heads}"
        );
        let model = gpt2(Gpt {
            vocab,
            context,
            d_model,
            heads,
            blocks: sizes.number("layers"),
            dropout: sizes.value("dropout"),
        });
        Ok(language_model(model, context, vocab))
    };
    let sized = |name, layers, d_model, heads| {
        move |entry: Entry| {
            let values = [("layers", layers), ("d_model", d_model), ("heads", heads)];
            entry.preset(
                name,
                &[&values[..], &[("vocab", 50257.0), ("context", 1024.0)]].concat(),
            )
        }
    };
    let entry = Entry::new("gpt", make)
        .about("decoder-only language model, head tied to the embedding")
        .source("GPT-2, Radford et al. 2019")
        .count("layers", 6, "transformer blocks")
        .count("d_model", 128, "features of a token")
        .count("heads", 4, "attention heads; divides d_model")
        .count("context", 128, "tokens of a sequence")
        .count("vocab", 256, "distinct tokens")
        .probability(
            "dropout",
            0.0,
            "dropout after embedding, attention and residuals",
        );
    let entry = sized("gpt2", 12.0, 768.0, 12.0)(entry);
    let entry = sized("gpt2-medium", 24.0, 1024.0, 16.0)(entry);
    let entry = sized("gpt2-large", 36.0, 1280.0, 20.0)(entry);
    sized("gpt2-xl", 48.0, 1600.0, 25.0)(entry)
}

fn mlp_entry() -> Entry {
    let make = |sizes: &Settings| {
        let (inputs, outputs) = (sizes.count("inputs"), sizes.count("outputs"));
        let model = mlp(Mlp {
            inputs,
            hidden: sizes.count("hidden"),
            depth: sizes.number("depth"),
            outputs,
        });
        let (x, y) = (Synthetic::normal([inputs]), Synthetic::classes([], outputs));
        Ok(Instance::new(model, x, y, class_cross_entropy))
    };
    Entry::new("mlp", make)
        .about("linear layers with ReLU between them")
        .source("textbook")
        .count("inputs", 784, "input features")
        .count("hidden", 1024, "features of a hidden layer")
        .count("depth", 8, "hidden layers")
        .count("outputs", 10, "classes")
}
