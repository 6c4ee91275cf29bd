//! What a model says of the token that comes next.

use tch::{Kind, Tensor};

use crate::Pipeline;
use crate::models::zoo::ModelSpec;

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
        // Past its context all places shift, and what was cached is of other ones.
        let logits = if self.caches && tokens.len() <= self.context {
            let (past, new) = (self.cached, &tokens[self.cached..]);
            let logits = self.pipe.decode(row(new), past)?;
            self.cached = tokens.len();
            logits
        } else {
            let seen = &tokens[tokens.len().saturating_sub(self.context)..];
            self.pipe.forward(row(seen))?
        };
        let last = logits.f_select(0, 0)?.f_select(0, -1)?;
        let known = last.size1()?.min(self.known as i64);
        Ok(last.f_narrow(0, 0, known)?.f_to_kind(Kind::Float)?)
    }
}

fn row(tokens: &[i64]) -> Tensor {
    Tensor::from_slice(tokens).view([1, -1])
}
