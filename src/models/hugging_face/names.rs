//! Names of parameters in `transformers` and in the zoo.

use tch::{TchError, Tensor};

use super::architecture::Architecture;

/// Name of a parameter in `transformers`, and whether its matrix is transposed.
///
/// GPT-2's linear layers are one-dimensional convolutions in `transformers`, `[inputs, outputs]`.
/// Llama's are `[outputs, inputs]` on both sides, and its rotary embedding pairs elements half a head
/// apart on both: nothing is permuted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Theirs {
    pub(super) name: String,
    turn: bool,
}

impl Architecture {
    /// Returns the `transformers` counterpart of a parameter.
    pub(super) fn theirs(self, ours: &str) -> Theirs {
        let (layer, rest) = ours.split_once('.').unwrap_or((ours, ""));
        let name = match (self, layer) {
            (Self::Gpt2, "embed") => format!("transformer.{rest}.weight"),
            (Self::Gpt2, "block") => format!("transformer.h.{rest}"),
            (Self::Gpt2, "head") => format!("transformer.{rest}"),
            (Self::Llama, "lm_head") => ours.to_owned(),
            _ => format!("{}{ours}", self.prefix()),
        };
        let turn = self == Self::Gpt2 && name.contains(".c_") && name.ends_with(".weight");
        Theirs { name, turn }
    }
}

impl Theirs {
    /// Converts a tensor between the two layouts, in either direction.
    pub(super) fn turned(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        if self.turn && tensor.dim() == 2 {
            return tensor.f_transpose(0, 1)?.f_contiguous();
        }
        Ok(tensor.shallow_clone())
    }

    /// Converts a shape between the two layouts.
    pub(super) fn shape(&self, shape: &[i64]) -> Vec<i64> {
        let mut shape = shape.to_vec();
        if self.turn {
            shape.reverse();
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        let pairs = [
            (
                Architecture::Gpt2,
                "embed.wte",
                "transformer.wte.weight",
                false,
            ),
            (
                Architecture::Gpt2,
                "embed.wpe",
                "transformer.wpe.weight",
                false,
            ),
            (
                Architecture::Gpt2,
                "block.11.attn.c_attn.weight",
                "transformer.h.11.attn.c_attn.weight",
                true,
            ),
            (
                Architecture::Gpt2,
                "block.0.mlp.c_fc.bias",
                "transformer.h.0.mlp.c_fc.bias",
                false,
            ),
            (
                Architecture::Gpt2,
                "block.0.ln_1.weight",
                "transformer.h.0.ln_1.weight",
                false,
            ),
            (
                Architecture::Gpt2,
                "head.ln_f.bias",
                "transformer.ln_f.bias",
                false,
            ),
            (
                Architecture::Llama,
                "embed_tokens.weight",
                "model.embed_tokens.weight",
                false,
            ),
            (
                Architecture::Llama,
                "layers.3.self_attn.q_proj.weight",
                "model.layers.3.self_attn.q_proj.weight",
                false,
            ),
            (
                Architecture::Llama,
                "norm.weight",
                "model.norm.weight",
                false,
            ),
            (
                Architecture::Llama,
                "lm_head.weight",
                "lm_head.weight",
                false,
            ),
        ];
        for (architecture, ours, name, turn) in pairs {
            let name = name.to_owned();
            assert_eq!(architecture.theirs(ours), Theirs { name, turn });
        }
    }
}
