//! The models that come with the library.

mod language;
mod vision;

use super::{Entry, Instance, Settings, Synthetic, class_cross_entropy};
use crate::{LossKind, Mlp, mlp};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        mlp_entry(),
        language::gpt_entry(),
        language::llama_entry(),
        language::transformer_entry(),
        language::lstm_entry(),
        vision::vgg_entry(),
        vision::resnet_entry(),
        vision::unet_entry(),
        vision::amoebanet_entry(),
    ]
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
        let own = Instance::new(model, x, y.clone(), class_cross_entropy);
        let own = own.or_judged_by(LossKind::CrossEntropy, y);
        let own = own.or_judged_by(LossKind::Mse, Synthetic::normal([outputs]));
        Ok(own.or_judged_by(LossKind::Bce, Synthetic::uniform([outputs])))
    };
    Entry::new("mlp", make)
        .about("linear layers with ReLU between them")
        .source("textbook")
        .count("inputs", 784, "input features")
        .count("hidden", 1024, "features of a hidden layer")
        .layers("depth", 8, "hidden layers")
        .count("outputs", 10, "classes, or numbers with --loss mse")
}
