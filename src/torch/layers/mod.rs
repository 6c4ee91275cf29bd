//! Layers that tch's `nn` lacks, or offers only with randomness from the process-wide generator or
//! with statistics that depend on how a batch is cut. Linear, convolution, layer norm and embedding
//! are tch's own.

mod attention;
mod batch_norm;
mod block;
mod dropout;
mod embedding;
mod kv_cache;

pub use attention::CausalSelfAttention;
pub use batch_norm::BatchNorm;
pub use block::TransformerBlock;
pub use dropout::Dropout;
pub use embedding::TokenEmbedding;
pub use kv_cache::KvCache;

use tch::nn;

/// A linear layer with weights drawn from N(0, `std`²) and biases of zero, as in GPT-2.
pub fn normal_linear(path: nn::Path<'_>, inputs: i64, outputs: i64, std: f64) -> nn::Linear {
    nn::linear(path, inputs, outputs, normal_linear_config(std))
}

/// Returns the configuration of [`normal_linear`].
pub fn normal_linear_config(std: f64) -> nn::LinearConfig {
    nn::LinearConfig {
        ws_init: nn::Init::Randn {
            mean: 0.0,
            stdev: std,
        },
        bs_init: Some(nn::Init::Const(0.0)),
        bias: true,
    }
}
