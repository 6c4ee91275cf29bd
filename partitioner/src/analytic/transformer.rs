//! A transformer by its shapes: parameters, FLOPs, and stored bytes.

use crate::profile::MAX_LAYERS;

/// The largest value of a size other than the layers.
const MAX_SIZE: usize = 1 << 24;

/// Architecture of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// As in GPT-2 and GPT-3: a feed-forward part of two matrices, biases, dropout, learned positions, and
    /// one matrix for both embedding and head (each end of a pipeline has a copy).
    #[default]
    Gpt,
    /// As in Llama: a gated feed-forward part of three matrices, no biases, no dropout, rotary
    /// positions, a head of its own.
    Llama,
}

/// Method of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// By tiles (`FlashAttention`): scores are never in memory, and recomputed in the backward.
    #[default]
    Flash,
    /// Scores are stored for the backward.
    Stored,
}

/// A decoder-only transformer, with 16-bit values, and sums and optimizer state in 32 bits.
///
/// # Examples
/// ```
/// use gpipe_partitioner::analytic::Transformer;
///
/// let gpt: Transformer = "layers=96,hidden=12288,heads=96,sequence=2048,vocabulary=51200".parse()?;
/// assert_eq!(gpt.parameters() / 100_000_000, 1746);
/// let long: Transformer = "llama3-70b,sequence=32768".parse()?;
/// assert_eq!((long.layers, long.sequence), (80, 32768));
/// # Ok::<(), gpipe_partitioner::analytic::TransformerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Transformer {
    /// Name.
    pub name: String,
    /// Blocks (l).
    pub layers: usize,
    /// Size of the hidden values (h).
    pub hidden: usize,
    /// Heads of attention (a).
    pub heads: usize,
    /// Heads of keys and values; several queries share one if there are fewer than query heads.
    pub kv_heads: usize,
    /// Inner size of the feed-forward part.
    pub feed_forward: usize,
    /// Tokens of a sample (s).
    pub sequence: usize,
    /// Size of the vocabulary (V).
    pub vocabulary: usize,
    /// Architecture of a block.
    pub family: Family,
    /// Method of attention.
    pub attention: Attention,
}

/// Why the transformer is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformerError {
    /// A size out of range.
    #[error("{key}={value}: must be from 1 to {most}")]
    Size {
        /// The size's key.
        key: &'static str,
        /// The given value.
        value: usize,
        /// The largest value.
        most: usize,
    },
    /// A size that another one does not divide.
    #[error("{key}={value} is no multiple of {of}={divisor}")]
    Multiple {
        /// The size's key.
        key: &'static str,
        /// The given value.
        value: usize,
        /// Key of the required divisor.
        of: &'static str,
        /// Value of the divisor.
        divisor: usize,
    },
    /// A text that describes no transformer.
    #[error("{0}")]
    Text(String),
}

impl Transformer {
    /// Returns a GPT of these sizes: as many key heads as query heads, and a feed-forward part four times
    /// as wide as the hidden values.
    ///
    /// # Errors
    /// [`TransformerError`] for a size of 0 or beyond 2^24, and if heads do not divide the hidden size.
    pub fn gpt(
        layers: usize,
        hidden: usize,
        heads: usize,
        sequence: usize,
        vocabulary: usize,
    ) -> Result<Self, TransformerError> {
        let own = Self {
            name: "transformer".to_owned(),
            layers,
            hidden,
            heads,
            kv_heads: heads,
            feed_forward: hidden.saturating_mul(4),
            sequence,
            vocabulary,
            family: Family::Gpt,
            attention: Attention::default(),
        };
        own.checked()
    }

    /// Sets the method of attention.
    #[must_use]
    pub fn with_attention(mut self, attention: Attention) -> Self {
        self.attention = attention;
        self
    }

    /// Returns the transformer if its sizes are possible.
    pub(super) fn checked(self) -> Result<Self, TransformerError> {
        let sizes = [
            ("layers", self.layers, MAX_LAYERS - 2),
            ("hidden", self.hidden, MAX_SIZE),
            ("heads", self.heads, MAX_SIZE),
            ("kv-heads", self.kv_heads, MAX_SIZE),
            ("feed-forward", self.feed_forward, MAX_SIZE),
            ("sequence", self.sequence, MAX_SIZE),
            ("vocabulary", self.vocabulary, MAX_SIZE),
        ];
        for (key, value, most) in sizes {
            if !(1..=most).contains(&value) {
                return Err(TransformerError::Size { key, value, most });
            }
        }
        let multiples = [
            ("hidden", self.hidden, "heads", self.heads),
            ("heads", self.heads, "kv-heads", self.kv_heads),
        ];
        for (key, value, of, divisor) in multiples {
            if !value.is_multiple_of(divisor) {
                return Err(TransformerError::Multiple {
                    key,
                    value,
                    of,
                    divisor,
                });
            }
        }
        Ok(self)
    }

    /// Size of the keys (or values) of a token.
    pub(super) fn kv_size(&self) -> usize {
        self.hidden / self.heads * self.kv_heads
    }

    /// Number of matrices that lead into the feed-forward part: 2 if it is gated.
    pub(super) fn ways_in(&self) -> usize {
        match self.family {
            Family::Gpt => 1,
            Family::Llama => 2,
        }
    }

    /// Parameters of a block: for a GPT 12 h² + 13 h.
    pub fn block_parameters(&self) -> u64 {
        let (h, f, kv) = (
            self.hidden as u64,
            self.feed_forward as u64,
            self.kv_size() as u64,
        );
        let ways = self.ways_in() as u64;
        let matrices = h * (h + 2 * kv) + h * h + ways * h * f + f * h;
        match self.family {
            // Biases of four matrices, and two norms with scale and shift.
            Family::Gpt => matrices + (h + 2 * kv) + h + f + h + 4 * h,
            Family::Llama => matrices + 2 * h,
        }
    }

    /// Parameters of the embedding, including learned positions.
    pub fn embedding_parameters(&self) -> u64 {
        let words = match self.family {
            Family::Gpt => self.vocabulary + self.sequence,
            Family::Llama => self.vocabulary,
        };
        (words * self.hidden) as u64
    }

    /// Parameters of the head; for a GPT those of the embedding, counted again.
    pub fn head_parameters(&self) -> u64 {
        (self.vocabulary * self.hidden) as u64
    }

    /// All parameters; a matrix shared by embedding and head counts once.
    pub fn parameters(&self) -> u64 {
        let head = match self.family {
            Family::Gpt => 0,
            Family::Llama => self.head_parameters(),
        };
        self.layers as u64 * self.block_parameters() + self.embedding_parameters() + head
    }

    /// FLOPs of the matrix products of a block's weights per token, forward.
    pub(super) fn block_flops(&self) -> f64 {
        let (h, f, kv) = (
            self.hidden as f64,
            self.feed_forward as f64,
            self.kv_size() as f64,
        );
        let matrices = h * (h + 2.0 * kv) + h * h + self.ways_in() as f64 * h * f + f * h;
        2.0 * matrices
    }

    /// FLOPs of attention's two products per token, forward, as if no token were masked (as in the
    /// papers).
    pub(super) fn attention_flops(&self) -> f64 {
        4.0 * self.sequence as f64 * self.hidden as f64
    }

    /// FLOPs of a step's matrix products per sample: forward and backward once, without recompute (model
    /// FLOPs). For a GPT with recompute, four thirds of this is equation 3 of Narayanan et al.,
    /// arXiv:2104.04473.
    ///
    /// ```
    /// use gpipe_partitioner::analytic::Transformer;
    /// let (l, h, s, v) = (24.0_f64, 2304.0_f64, 2048.0_f64, 51200.0_f64);
    /// let gpt = Transformer::gpt(24, 2304, 24, 2048, 51200)?;
    /// let equation = 96.0 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    /// let blocks = equation - 6.0 * s * h * v;
    /// assert!((gpt.flops() - (0.75 * blocks + 6.0 * s * h * v)).abs() < 1e-9 * equation);
    /// # Ok::<(), gpipe_partitioner::analytic::TransformerError>(())
    /// ```
    pub fn flops(&self) -> f64 {
        let token = self.layers as f64 * (self.block_flops() + self.attention_flops());
        let head = 2.0 * self.hidden as f64 * self.vocabulary as f64;
        3.0 * self.sequence as f64 * (token + head)
    }

    /// Bytes that a block stores for the backward per token: those divided by tensor parallelism, and
    /// those on each card of a group unless the sequence is divided, too. For a GPT with stored scores 24
    /// h + 5 a s and 10 h: together the h (34 + 5 a s / h) of Korthikanti et al., arXiv:2205.05198,
    /// equation 2.
    pub fn stored(&self) -> (f64, f64) {
        let (h, f, kv) = (
            self.hidden as f64,
            self.feed_forward as f64,
            self.kv_size() as f64,
        );
        let scores = self.heads as f64 * self.sequence as f64;
        let gpt = self.family == Family::Gpt;
        // Queries, keys, values, and the input of the projection.
        let attention = 2.0 * h + 4.0 * kv + 2.0 * h;
        // Inputs (two if gated) and output of the activation function.
        let inner = 2.0 * f * (self.ways_in() as f64 + 1.0);
        let scores = match (self.attention, gpt) {
            (Attention::Flash, _) => 0.0,
            // Softmax, the mask of its dropout, and the dropout's output.
            (Attention::Stored, true) => 5.0 * scores,
            (Attention::Stored, false) => 2.0 * scores,
        };
        // Inputs of two norms, of attention and of the feed-forward part; masks of two dropouts.
        let whole = 8.0 * h + if gpt { 2.0 * h } else { 0.0 };
        (attention + inner + scores, whole)
    }

    /// Bytes that a block keeps between the halves of the backward, per token: inputs of its matrices and
    /// gradients of their outputs. For a GPT 32 h, as in table 1 of Qi et al., arXiv:2401.10241.
    pub(super) fn stored_between_halves(&self) -> f64 {
        let (h, f, kv) = (
            self.hidden as f64,
            self.feed_forward as f64,
            self.kv_size() as f64,
        );
        let inputs = 3.0 * h + f;
        let outputs = (h + 2.0 * kv) + h + self.ways_in() as f64 * f + h;
        2.0 * (inputs + outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt() -> Transformer {
        let gpt = Transformer::gpt(48, 6144, 48, 1024, 51_200).unwrap();
        gpt.with_attention(Attention::Stored)
    }

    #[test]
    fn a_gpt_stores_what_the_papers_count() {
        let (divided, whole) = gpt().stored();
        let h = 6144.0;
        assert_eq!(divided, 24.0 * h + 5.0 * 48.0 * 1024.0);
        assert_eq!(whole, 10.0 * h);
        assert_eq!(gpt().stored_between_halves(), 32.0 * h);
        assert_eq!(gpt().block_flops(), 24.0 * h * h);
        assert_eq!(gpt().block_parameters(), 12 * 6144 * 6144 + 13 * 6144);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let refused = |sizes: [usize; 5]| {
            let [layers, hidden, heads, sequence, vocabulary] = sizes;
            let own = Transformer::gpt(layers, hidden, heads, sequence, vocabulary);
            own.unwrap_err().to_string()
        };
        assert_eq!(
            refused([0, 64, 4, 8, 100]),
            "layers=0: must be from 1 to 99998"
        );
        assert_eq!(
            refused([2, 65, 4, 8, 100]),
            "hidden=65 is no multiple of heads=4"
        );
        assert_eq!(
            refused([2, 64, 4, usize::MAX, 100]),
            format!("sequence={}: must be from 1 to 16777216", usize::MAX)
        );
    }
}
