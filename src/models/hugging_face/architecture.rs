//! The two architectures supported on both sides.

use tch::Tensor;

use super::error::HuggingFaceError;
use super::tensors::Files;
use crate::zoo::ModelSpec;

/// The projection to the vocabulary, unless it is tied to the embedding.
const HEAD: &str = "lm_head.weight";

/// `transformers`' architectures `gpt2` and `llama`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Gpt2,
    Llama,
}

impl Architecture {
    pub(super) fn of(spec: &ModelSpec) -> Result<Self, HuggingFaceError> {
        let all = [Self::Gpt2, Self::Llama];
        let own = all
            .into_iter()
            .find(|own| own.entry() == spec.entry().name());
        own.ok_or_else(|| HuggingFaceError::Unknown {
            model: spec.name().to_owned(),
        })
    }

    /// Name in the zoo.
    pub(super) fn entry(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt",
            Self::Llama => "llama",
        }
    }

    /// Prefix of names, except in weights saved without a head.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::Llama => "model.",
        }
    }

    /// The token embedding, which may also be the projection to the vocabulary.
    fn embedding(self) -> &'static str {
        match self {
            Self::Gpt2 => "embed.wte",
            Self::Llama => "embed_tokens.weight",
        }
    }

    /// Rejects tensors that would be lost: all except those that follow from others.
    pub(super) fn check_rest(
        self,
        files: &mut Files,
        weights: &[(String, Tensor)],
    ) -> Result<(), HuggingFaceError> {
        for name in files.rest() {
            let why = match name.as_str() {
                HEAD => {
                    let head = files.take(&name, "")?;
                    let embedding = weights.iter().find(|(own, _)| own == self.embedding());
                    match (head, embedding) {
                        (Some(head), Some((_, embedding))) if head.f_equal(embedding)? => continue,
                        _ => "it differs from the embedding, and the model uses one for both",
                    }
                }
                name if follows(name) => continue,
                _ => "these are the weights of another model",
            };
            return Err(files.extra(&name, why));
        }
        Ok(())
    }
}

/// Whether this is a mask or frequencies that older versions saved, although they follow from the
/// sizes.
fn follows(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"]
        .iter()
        .any(|end| name.ends_with(end))
}
