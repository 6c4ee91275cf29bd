//! Keys and values of earlier tokens.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tch::{Kind, TchError, Tensor};

use crate::Context;

/// Places that a cache has room for at least.
const LEAST: i64 = 64;

/// Cache of an attention layer for tokens that come one after the other ([`Context::past`]): the
/// keys and values of earlier passes, for each micro-batch. It lives with the layer, on the layer's
/// device; other passes neither read nor write it.
///
/// Each pass states how many tokens came before it. So a pass that is run twice writes the same
/// values twice, and one that goes back some tokens overwrites them.
#[derive(Debug, Default)]
pub struct KvCache(RefCell<BTreeMap<usize, Kept>>);

/// The keys and values of one micro-batch, with room for more.
#[derive(Debug)]
struct Kept {
    /// `[batch, heads, room, head]`.
    key: Tensor,
    value: Tensor,
    /// Number of cached tokens.
    tokens: i64,
}

impl KvCache {
    /// Computes causal attention of the queries to their own keys and values, and to those of
    /// earlier tokens; with a `window`, only to that many of the last ones.
    ///
    /// *Shapes*: `[batch, heads, time, head]`, of the pass's tokens only; the result has that of
    /// the queries. Key and value may have fewer heads, each shared by several query heads.
    ///
    /// # Errors
    /// The pass continues with more tokens than came before, or with different sequences.
    pub fn attend(
        &self,
        ctx: &Context,
        query: &Tensor,
        (key, value): (&Tensor, &Tensor),
        window: Option<i64>,
    ) -> anyhow::Result<Tensor> {
        let (past, (key, value)) = self.extend(ctx, (key, value))?;
        let (heads, groups) = (query.size4()?.1, key.size4()?.1);
        let (key, value) = (shared(&key, heads, groups)?, shared(&value, heads, groups)?);
        Ok(attend(query, &key, &value, past, window)?)
    }

    /// Tokens before those of the pass, and the keys and values of all.
    fn extend(
        &self,
        ctx: &Context,
        (key, value): (&Tensor, &Tensor),
    ) -> anyhow::Result<(i64, (Tensor, Tensor))> {
        let Some(past) = ctx.past().map(|past| past as i64) else {
            return Ok((0, (key.shallow_clone(), value.shallow_clone())));
        };
        let mut all = self.0.borrow_mut();
        let micro = ctx.micro().index();
        let kept = match all.remove(&micro) {
            Some(kept) if past > 0 => kept,
            None if past > 0 => anyhow::bail!("{past} tokens are to be cached, but none are"),
            _ => Kept::new(key, value)?,
        };
        let kept = all.entry(micro).or_insert(kept);
        Ok((past, kept.put(past, key, value)?))
    }
}

impl Kept {
    fn new(key: &Tensor, value: &Tensor) -> Result<Self, TchError> {
        Ok(Self {
            key: with_room(key, LEAST)?,
            value: with_room(value, LEAST)?,
            tokens: 0,
        })
    }

    /// Writes what belongs at places from `past` on; gives all up to there.
    fn put(&mut self, past: i64, key: &Tensor, value: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
        anyhow::ensure!(
            past <= self.tokens,
            "{past} tokens are to be cached, but only {} are",
            self.tokens
        );
        let (batch, _, time, _) = key.size4()?;
        let (own, _, room, _) = self.key.size4()?;
        anyhow::ensure!(
            batch == own,
            "{own} sequences are cached, and {batch} others go on"
        );
        let end = past + time;
        for (kept, new) in [(&mut self.key, key), (&mut self.value, value)] {
            if end > room {
                let wider = with_room(kept, end.max(2 * room))?;
                let old = kept.f_narrow(2, 0, past)?;
                wider.f_narrow(2, 0, past)?.f_copy_(&old)?;
                *kept = wider;
            }
            kept.f_narrow(2, past, time)?.f_copy_(new)?;
        }
        self.tokens = end;
        Ok((
            self.key.f_narrow(2, 0, end)?,
            self.value.f_narrow(2, 0, end)?,
        ))
    }
}

/// Each head of key or value for all heads of the query that share it.
fn shared(own: &Tensor, heads: i64, groups: i64) -> Result<Tensor, TchError> {
    let times = heads / groups.max(1);
    if times == 1 {
        return Ok(own.shallow_clone());
    }
    let (batch, _, time, head) = own.size4()?;
    own.f_unsqueeze(2)?
        .f_expand([batch, groups, times, time, head], false)?
        .f_reshape([batch, heads, time, head])
}

/// Makes room for at least `tokens` tokens, with the sequences, heads and features of `like`.
fn with_room(like: &Tensor, tokens: i64) -> Result<Tensor, TchError> {
    let (batch, heads, time, head) = like.size4()?;
    let shape = [batch, heads, time.max(tokens), head];
    Tensor::f_empty(shape, (like.kind(), like.device()))
}

/// Attention of queries at places from `past` on to keys and values at places from 0 on.
fn attend(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    past: i64,
    window: Option<i64>,
) -> Result<Tensor, TchError> {
    let (_, _, time, _) = query.size4()?;
    let window = window.filter(|&window| window < past + time);
    let (mask, causal) = match (past, window) {
        (0, None) => (None, true),
        // A single token attends to all earlier ones.
        (_, None) if time == 1 => (None, false),
        (_, window) => (Some(seen(past, time, window, query)?), false),
    };
    Tensor::f_scaled_dot_product_attention(query, key, value, mask, 0.0, causal, None, false)
}

/// Returns the mask of places that each of `time` queries attends to: `[time, past + time]`.
fn seen(past: i64, time: i64, window: Option<i64>, like: &Tensor) -> Result<Tensor, TchError> {
    let all = Tensor::f_ones([time, past + time], (Kind::Bool, like.device()))?;
    let before = all.f_tril(past)?;
    match window {
        Some(window) => before.f_triu(past + 1 - window),
        None => Ok(before),
    }
}
