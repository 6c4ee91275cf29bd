//! A language model of LSTM layers.

use tch::{Kind, Tensor, nn};

use super::parts::linear;
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Sizes of an [`lstm`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lstm {
    /// Vocabulary size.
    pub vocab: i64,
    /// Features per token and per hidden state.
    pub hidden: i64,
    /// Number of LSTM layers.
    pub layers: usize,
    /// Dropout probability between layers.
    pub dropout: f64,
}

/// Makes a model of `layers` + 2 layers: `embed`, `lstm.0` …, `head` (a linear layer to the
/// vocabulary).
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`; any time. States start at zero
/// for every sequence.
///
/// *Source*: Zaremba et al. 2014: dropout between layers, not in time. Parameters of a
/// layer have the names and layouts of PyTorch's `LSTM` of one layer.
pub fn lstm(sizes: Lstm) -> Sequential {
    let Lstm {
        vocab,
        hidden,
        layers,
        dropout,
    } = sizes;
    Sequential::new()
        .layer("embed", move |p| Embed {
            tokens: p.uniform("weight", &[vocab, hidden], -0.1, 0.1),
            dropout,
        })
        .layers("lstm", layers, move |p, _| {
            LstmLayer::new(p, hidden, dropout)
        })
        .layer("head", move |p| linear(p, hidden, vocab, true))
}

#[derive(Debug)]
struct Embed {
    tokens: Tensor,
    dropout: f64,
}

impl Layer for Embed {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let tokens = inputs.into_one()?;
        let embedded = Tensor::f_embedding(&self.tokens, &tokens, -1, false, false)?;
        Ok(ctx.dropout(&embedded, self.dropout)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// One LSTM layer over a whole sequence, then dropout.
#[derive(Debug)]
struct LstmLayer {
    weights: [Tensor; 4],
    hidden: i64,
    dropout: f64,
}

impl LstmLayer {
    fn new(path: &nn::Path<'_>, hidden: i64, dropout: f64) -> Self {
        let bound = 1.0 / (hidden as f64).sqrt();
        let uniform = |name: &str, shape: &[i64]| path.uniform(name, shape, -bound, bound);
        let gates = 4 * hidden;
        Self {
            weights: [
                uniform("weight_ih_l0", &[gates, hidden]),
                uniform("weight_hh_l0", &[gates, hidden]),
                uniform("bias_ih_l0", &[gates]),
                uniform("bias_hh_l0", &[gates]),
            ],
            hidden,
            dropout,
        }
    }
}

impl Layer for LstmLayer {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let (batch, _, _) = input.size3()?;
        let options = (Kind::Float, input.device());
        let zeros = Tensor::f_zeros([1, batch, self.hidden], options)?;
        let state = [&zeros, &zeros];
        let weights: Vec<_> = self.weights.iter().collect();
        let train = ctx.train();
        let (output, ..) = input.f_lstm(&state, &weights, true, 1, 0.0, train, false, true)?;
        Ok(ctx.dropout(&output, self.dropout)?.into())
    }

    // Not `graph_safe`: cuDNN's recurrent kernels rearrange the weights in each pass.
}
