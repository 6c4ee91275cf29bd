//! One matrix used in three places: embedding, a layer in the middle, head.

use gpipe::tch::{Device, Kind, Tensor, nn};

use super::{Model, Plainly, linear, token_loss, weight};

const VOCABULARY: i64 = 11;
const WIDTH: i64 = 8;

/// Tokens `[sample, time]` to logits over the vocabulary, embedding and head tied.
pub(crate) fn tied() -> Model {
    let mut model = Model::new("tied", batch, token_loss).layer("embed", |path| {
        let table = table(path);
        Box::new(move |x, _| Tensor::embedding(&table, x, -1, false, false))
    });
    for number in 0..2 {
        model = model.layer(format!("block.{number}"), block);
    }
    // Predicts a token and embeds the prediction: two uses in one place.
    model = model
        .layer("guess", |path| {
            let table = table(path);
            Box::new(move |x, _| {
                let guess = x.matmul(&table.tr()).softmax(-1, None::<Kind>);
                x + guess.matmul(&table)
            })
        })
        .tied("embed", "embed.weight", "guess.weight");
    for number in 2..5 {
        model = model.layer(format!("block.{number}"), block);
    }
    let model = model
        .layer("head", |path| {
            let table = table(path);
            Box::new(move |x, _| x.matmul(&table.tr()))
        })
        .tied("embed", "embed.weight", "head.weight");
    Model {
        plainly: Plainly::Closely,
        ..model
    }
}

/// The existing table at `path`, or a new one.
fn table(path: &nn::Path<'_>) -> Tensor {
    path.get("weight")
        .unwrap_or_else(|| weight(path, "weight", &[VOCABULARY, WIDTH]))
}

fn block(path: &nn::Path<'_>) -> super::Forward {
    let (up, down) = (
        linear(&(path / "up"), WIDTH, 2 * WIDTH),
        linear(&(path / "down"), 2 * WIDTH, WIDTH),
    );
    Box::new(move |x, _| x + x.apply(&up).gelu("tanh").apply(&down))
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    let numbers = Tensor::arange(samples * 5, (Kind::Int64, Device::Cpu)).view([samples, 5]);
    let tokens = |factor: i64| (&numbers * factor + 2).remainder(VOCABULARY);
    (tokens(7), tokens(4))
}
