//! Token and learned position embedding.

use tch::{Kind, Tensor, nn};

use crate::{Context, Layer, Values};

/// Sum of a token's and its position's embedding, then dropout.
///
/// *Shapes*: tokens `[batch, time]` of integers to `[batch, time, d_model]`.
#[derive(Debug)]
pub struct TokenEmbedding {
    tokens: Tensor,
    positions: Tensor,
    dropout: f64,
}

impl TokenEmbedding {
    /// Tables `wte` for `vocab` tokens and `wpe` for `context` positions, from N(0, 0.02²).
    pub fn new(path: &nn::Path<'_>, vocab: i64, context: i64, d_model: i64, dropout: f64) -> Self {
        Self {
            tokens: path.randn("wte", &[vocab, d_model], 0.0, 0.02),
            positions: path.randn("wpe", &[context, d_model], 0.0, 0.02),
            dropout,
        }
    }
}

impl Layer for TokenEmbedding {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let tokens = inputs.into_one()?;
        anyhow::ensure!(
            matches!(tokens.kind(), Kind::Int64 | Kind::Int),
            "tokens must be integers, but are {:?}",
            tokens.kind()
        );
        let (_, time) = tokens.size2()?;
        let past = ctx.past().unwrap_or_default() as i64;
        let context = self.positions.size()[0];
        anyhow::ensure!(
            past + time <= context,
            "{} tokens, but the context holds {context}",
            past + time
        );
        let tokens = Tensor::f_embedding(&self.tokens, &tokens, -1, false, false)?;
        let sum = tokens.f_add(&self.positions.f_narrow(0, past, time)?)?;
        Ok(ctx.dropout(&sum, self.dropout)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
