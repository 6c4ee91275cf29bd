//! Models of token sequences.

use super::super::{Entry, Instance, Settings, Synthetic, token_cross_entropy};
use crate::{
    Biases, Gpt, Llama, LossKind, Lstm, RopeScaling, Transformer, gpt, llama, lstm, transformer,
};
use gpipe_torch::Sequential;

/// Makes a model from tokens to a target per token.
fn of_tokens(model: Sequential, sizes: &Settings) -> Instance {
    let tokens = || Synthetic::classes([sizes.count("context")], sizes.count("vocab"));
    let own = Instance::new(model, tokens(), tokens(), token_cross_entropy);
    own.or_judged_by(LossKind::CrossEntropy, tokens())
}

pub(super) fn gpt_entry() -> Entry {
    let make = |sizes: &Settings| {
        let (d_model, heads) = (sizes.count("d_model"), sizes.count("heads"));
        anyhow::ensure!(
            d_model % heads == 0,
            "d_model {d_model} is not a multiple of heads {heads}"
        );
        let context = sizes.count("context");
        let positions = sizes.optional_count("positions").unwrap_or(context);
        anyhow::ensure!(
            positions >= context,
            "a table of {positions} positions is too short for a context of {context} tokens"
        );
        let model = gpt(Gpt {
            vocab: sizes.count("vocab"),
            context: positions,
            d_model,
            heads,
            blocks: sizes.number("layers"),
            dropout: sizes.value("dropout"),
        });
        Ok(of_tokens(model, sizes).caches())
    };
    let entry = Entry::new("gpt", make)
        .about("decoder-only language model, head tied to the embedding")
        .source("GPT-2, Radford et al. 2019")
        .layers("layers", 6, "transformer blocks")
        .count("d_model", 128, "features of a token")
        .count("heads", 4, "attention heads; divides d_model")
        .count("context", 128, "tokens of a sequence")
        .optional_count(
            "positions",
            "rows of the table of positions; 0 for one for each token of the context",
        )
        .count("vocab", 256, "distinct tokens")
        .probability(
            "dropout",
            0.0,
            "dropout after embedding, attention, residuals",
        );
    let released = [
        ("gpt2", 12.0, 768.0, 12.0),
        ("gpt2-medium", 24.0, 1024.0, 16.0),
        ("gpt2-large", 36.0, 1280.0, 20.0),
        ("gpt2-xl", 48.0, 1600.0, 25.0),
    ];
    released
        .into_iter()
        .fold(entry, |entry, (name, layers, d_model, heads)| {
            let sizes = [
                ("layers", layers),
                ("d_model", d_model),
                ("heads", heads),
                ("context", 1024.0),
                ("vocab", 50_257.0),
            ];
            entry.preset(name, &sizes)
        })
}

pub(super) fn llama_entry() -> Entry {
    let make = |sizes: &Settings| {
        let model = llama(Llama {
            vocab: sizes.count("vocab"),
            d_model: sizes.count("d_model"),
            layers: sizes.number("layers"),
            heads: sizes.count("heads"),
            kv_heads: sizes.count("kv_heads"),
            head_dim: head_dim(sizes),
            d_ff: sizes.count("d_ff"),
            theta: sizes.value("theta"),
            rope_scaling: rope_scaling(sizes)?,
            window: sizes.optional_count("window"),
            biases: Biases {
                of_qkv: sizes.is_on("qkv_bias"),
                of_out: sizes.is_on("out_bias"),
                of_mlp: sizes.is_on("mlp_bias"),
            },
            qk_norm: sizes.is_on("qk_norm"),
            norm_eps: sizes.value("norm_eps"),
            tied: sizes.is_on("tied"),
        })?;
        Ok(of_tokens(model, sizes).caches())
    };
    let entry = Entry::new("llama", make)
        .about("decoder-only language model: Llama, Mistral, Qwen 2 and 3, SmolLM2")
        .source("Llama, Touvron et al. 2023")
        .layers("layers", 6, "transformer blocks")
        .count("d_model", 128, "features of a token")
        .count("heads", 4, "attention heads")
        .count("kv_heads", 2, "heads of key and value; divides heads")
        .optional_count("head_dim", "features of a head; 0 for d_model / heads")
        .count("d_ff", 352, "features within the feed-forward net")
        .count("context", 128, "tokens of a sequence")
        .count("vocab", 256, "distinct tokens")
        .count("theta", 10_000, "base of the rotary wavelengths")
        .switch(
            "tied",
            false,
            "whether (1) the head multiplies by the token embedding",
        )
        .probability("norm_eps", 1e-5, "what norms add to the mean of squares")
        .switch("qkv_bias", false, "biases of query, key and value (Qwen 2)")
        .switch("out_bias", false, "a bias behind attention")
        .switch("mlp_bias", false, "biases within the feed-forward net")
        .switch(
            "qk_norm",
            false,
            "norms of the heads of query and key (Qwen 3)",
        )
        .optional_count(
            "window",
            "last tokens that a token sees; 0 for all (Mistral)",
        )
        .positive("rope_factor", 1.0, "stretches the rotary wavelengths")
        .optional_count(
            "rope_context",
            "context before the stretching (Llama 3.1); 0 stretches all alike",
        )
        .positive(
            "rope_low",
            1.0,
            "wavelengths above rope_context / this are stretched",
        )
        .positive(
            "rope_high",
            4.0,
            "wavelengths below rope_context / this are not",
        );
    released(entry)
}

/// Adds presets of released models.
fn released(entry: Entry) -> Entry {
    // layers, d_model, heads, kv_heads, d_ff, context, vocab, theta
    let released = [
        (
            "tinyllama-1.1b",
            [22, 2048, 32, 4, 5632, 2048, 32_000, 10_000],
        ),
        (
            "llama2-7b",
            [32, 4096, 32, 32, 11_008, 4096, 32_000, 10_000],
        ),
        (
            "llama2-13b",
            [40, 5120, 40, 40, 13_824, 4096, 32_000, 10_000],
        ),
        (
            "llama2-70b",
            [80, 8192, 64, 8, 28_672, 4096, 32_000, 10_000],
        ),
        (
            "llama3-8b",
            [32, 4096, 32, 8, 14_336, 8192, 128_256, 500_000],
        ),
        (
            "llama3-70b",
            [80, 8192, 64, 8, 28_672, 8192, 128_256, 500_000],
        ),
    ];
    let names = [
        "layers", "d_model", "heads", "kv_heads", "d_ff", "context", "vocab", "theta",
    ];
    released.into_iter().fold(entry, |entry, (name, values)| {
        let sizes: Vec<_> = names.into_iter().zip(values.map(f64::from)).collect();
        entry.preset(name, &sizes)
    })
}

/// Returns the features per head of a `llama`.
fn head_dim(sizes: &Settings) -> i64 {
    let (d_model, heads) = (sizes.count("d_model"), sizes.count("heads"));
    // 0, which is invalid, if it does not divide.
    let divided = if d_model % heads == 0 {
        d_model / heads
    } else {
        0
    };
    sizes.optional_count("head_dim").unwrap_or(divided)
}

fn rope_scaling(sizes: &Settings) -> anyhow::Result<RopeScaling> {
    let factor = sizes.value("rope_factor");
    let (low, high) = (sizes.value("rope_low"), sizes.value("rope_high"));
    anyhow::ensure!(low < high, "rope_low {low} is not below rope_high {high}");
    Ok(match sizes.optional_count("rope_context") {
        Some(context) => RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: context as f64,
        },
        None if (factor - 1.0).abs() > 0.0 => RopeScaling::Linear { factor },
        None => RopeScaling::None,
    })
}

pub(super) fn transformer_entry() -> Entry {
    let make = |sizes: &Settings| {
        let model = transformer(Transformer {
            vocab: sizes.count("vocab"),
            d_model: sizes.count("d_model"),
            layers: sizes.number("layers"),
            heads: sizes.count("heads"),
            d_ff: sizes.count("d_ff"),
            dropout: sizes.value("dropout"),
        })?;
        Ok(of_tokens(model, sizes).sees_later_tokens())
    };
    Entry::new("transformer", make)
        .about("encoder that names a token at every position")
        .source("Vaswani et al. 2017")
        .layers("layers", 6, "encoder layers")
        .count("d_model", 128, "features of a token, even")
        .count("heads", 4, "attention heads; divides d_model")
        .count("d_ff", 512, "features within the feed-forward net")
        .count("context", 128, "tokens of a sequence")
        .count("vocab", 256, "distinct tokens")
        .probability("dropout", 0.0, "dropout everywhere the paper has it")
        .preset("transformer-base", &original(512.0, 8.0, 2048.0, 0.1))
        .preset("transformer-big", &original(1024.0, 16.0, 4096.0, 0.3))
}

/// The paper's two sizes (table 3), with its English-German vocabulary.
fn original(d_model: f64, heads: f64, d_ff: f64, dropout: f64) -> [(&'static str, f64); 6] {
    [
        ("d_model", d_model),
        ("heads", heads),
        ("d_ff", d_ff),
        ("context", 512.0),
        ("vocab", 37_000.0),
        ("dropout", dropout),
    ]
}

pub(super) fn lstm_entry() -> Entry {
    let make = |sizes: &Settings| {
        let model = lstm(Lstm {
            vocab: sizes.count("vocab"),
            hidden: sizes.count("hidden"),
            layers: sizes.number("layers"),
            dropout: sizes.value("dropout"),
        });
        Ok(of_tokens(model, sizes))
    };
    Entry::new("lstm", make)
        .about("recurrent language model")
        .source("Zaremba et al. 2014")
        .layers("layers", 4, "LSTM layers")
        .count("hidden", 256, "features of a token and of a state")
        .count("context", 35, "tokens of a sequence")
        .count("vocab", 256, "distinct tokens")
        .probability("dropout", 0.0, "dropout between layers")
        .preset("lstm-medium", &zaremba(650.0, 0.5))
        .preset("lstm-large", &zaremba(1500.0, 0.65))
}

/// The paper's two regularized sizes, for Penn Treebank.
fn zaremba(hidden: f64, dropout: f64) -> [(&'static str, f64); 5] {
    [
        ("layers", 2.0),
        ("hidden", hidden),
        ("context", 35.0),
        ("vocab", 10_000.0),
        ("dropout", dropout),
    ]
}
