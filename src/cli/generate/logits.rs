//! What a model says of the token that comes next.

use tch::{Kind, Tensor};

use gpipe_models::zoo::ModelSpec;
use gpipe_torch::Pipeline;

/// A text that grows, and the model that sees it.
#[derive(Debug)]
pub(super) struct Growing<'p> {
    pipe: &'p mut Pipeline,
    /// Tokens that it sees at most.
    context: usize,
    /// Tokens that stand for something; a model may know more.
    known: usize,
    /// Whether its layers keep what they need of tokens that came before.
    caches: bool,
    is_exported: bool,
    /// Copies of the text that make the fewest samples the model takes.
    copies: i64,
    tokens: Vec<i64>,
    /// Tokens that they have.
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

    /// What stands there so far.
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
        // Past its context all places shift, and what was cached is of other ones.
        let logits = if self.caches && tokens.len() <= self.context {
            let (past, new) = (self.cached, &tokens[self.cached..]);
            let logits = self.pipe.decode(row(new), past)?;
            self.cached = tokens.len();
            logits
        } else {
            let mut seen = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
            last = seen.len() as i64 - 1;
            // Its sequences may have one length alone; no token sees those after it.
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
