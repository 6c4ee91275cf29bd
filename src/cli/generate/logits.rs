//! Logits of the next token.

use tch::{Kind, Tensor};

use gpipe_models::zoo::ModelSpec;
use gpipe_torch::Pipeline;

/// A growing text, and the model that reads it.
#[derive(Debug)]
pub(super) struct Growing<'p> {
    pipe: &'p mut Pipeline,
    /// Maximum number of tokens that the model sees.
    context: usize,
    /// Size of the vocabulary; the model may know more tokens.
    known: usize,
    /// Whether layers cache the keys and values of earlier tokens.
    caches: bool,
    is_exported: bool,
    /// Copies of the text that fill the smallest batch the model takes.
    copies: i64,
    tokens: Vec<i64>,
    /// Tokens in the cache.
    cached: usize,
}

impl<'p> Growing<'p> {
    pub(super) fn new(
        pipe: &'p mut Pipeline,
        spec: &ModelSpec,
        (context, known): (usize, usize),
        tokens: Vec<i64>,
    ) -> Self {
        Self {
            pipe,
            context,
            known,
            caches: spec.caches(),
            is_exported: spec.exported().is_some(),
            copies: (spec.exported()).map_or(1, |model| *model.micro_batch_sizes().start() as i64),
            tokens,
            cached: 0,
        }
    }

    /// The tokens so far.
    pub(super) fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    pub(super) fn push(&mut self, token: i64) {
        self.tokens.push(token);
    }

    /// The logits of the next token: `[known]`.
    pub(super) fn logits(&mut self) -> anyhow::Result<Tensor> {
        let tokens = &self.tokens;
        let mut last = -1;
        // Past the context all positions shift, and the cache is invalid.
        let logits = if self.caches && tokens.len() <= self.context {
            let (past, new) = (self.cached, &tokens[self.cached..]);
            let logits = self.pipe.decode(row(new), past)?;
            self.cached = tokens.len();
            logits
        } else {
            let mut seen = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
            last = seen.len() as i64 - 1;
            // Its sequences may have a fixed length; no token sees those after it.
            if self.is_exported {
                seen.resize(self.context, 0);
            }
            let seen = row(&seen).f_repeat([self.copies, 1])?;
            let outputs = self.pipe.forward_at_once(seen)?;
            let first = outputs.get(0).map(Tensor::shallow_clone);
            first.ok_or_else(|| anyhow::anyhow!("the model's first output is absent"))?
        };
        let last = logits.f_select(0, 0)?.f_select(0, last)?;
        let known = last.size1()?.min(self.known as i64);
        Ok(last.f_narrow(0, 0, known)?.f_to_kind(Kind::Float)?)
    }
}

fn row(tokens: &[i64]) -> Tensor {
    Tensor::from_slice(tokens).view([1, -1])
}
