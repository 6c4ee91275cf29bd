//! Known transformers, by name.

use super::transformer::{Attention, Family, Transformer};

/// A transformer that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTransformer {
    /// The name.
    pub name: &'static str,
    /// Layers, hidden size, heads, heads of keys and values, inner size of the feed-forward part,
    /// sequence and vocabulary.
    sizes: [usize; 7],
    family: Family,
    attention: Attention,
    /// Source of the sizes.
    pub source: &'static str,
}

/// All known transformers.
pub const KNOWN_TRANSFORMERS: [KnownTransformer; 12] = [
    gpt2("gpt2", 12, 768, "config.json of gpt2"),
    gpt2("gpt2-medium", 24, 1_024, "config.json of gpt2-medium"),
    gpt2("gpt2-large", 36, 1_280, "config.json of gpt2-large"),
    gpt2("gpt2-xl", 48, 1_600, "config.json of gpt2-xl"),
    KnownTransformer {
        name: "gpt3-175b",
        sizes: [96, 12_288, 96, 96, 49_152, 2_048, 51_200],
        family: Family::Gpt,
        attention: Attention::Flash,
        source: "Narayanan et al., arXiv:2104.04473, section 5.3.2 (layers, heads, hidden size) and 5.1 \
                 (sequence and padded vocabulary)",
    },
    KnownTransformer {
        name: "llama2-7b",
        sizes: [32, 4_096, 32, 32, 11_008, 4_096, 32_000],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Llama-2-7b",
    },
    KnownTransformer {
        name: "llama2-13b",
        sizes: [40, 5_120, 40, 40, 13_824, 4_096, 32_000],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Llama-2-13b",
    },
    KnownTransformer {
        name: "llama2-70b",
        sizes: [80, 8_192, 64, 8, 28_672, 4_096, 32_000],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Llama-2-70b",
    },
    KnownTransformer {
        name: "mistral-7b",
        sizes: [32, 4_096, 32, 8, 14_336, 8_192, 32_000],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Mistral-7B-v0.1; the sequence is that of its paper, arXiv:2310.06825",
    },
    KnownTransformer {
        name: "tinyllama",
        sizes: [22, 2_048, 32, 4, 5_632, 2_048, 32_000],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of TinyLlama-1.1B",
    },
    KnownTransformer {
        name: "llama3-8b",
        sizes: [32, 4_096, 32, 8, 14_336, 8_192, 128_256],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Meta-Llama-3-8B",
    },
    KnownTransformer {
        name: "llama3-70b",
        sizes: [80, 8_192, 64, 8, 28_672, 8_192, 128_256],
        family: Family::Llama,
        attention: Attention::Flash,
        source: "config.json of Meta-Llama-3-70B",
    },
];

/// A GPT-2, whose heads have size 64.
const fn gpt2(
    name: &'static str,
    layers: usize,
    hidden: usize,
    source: &'static str,
) -> KnownTransformer {
    let heads = hidden / 64;
    KnownTransformer {
        name,
        sizes: [layers, hidden, heads, heads, 4 * hidden, 1_024, 50_257],
        family: Family::Gpt,
        attention: Attention::Flash,
        source,
    }
}

impl KnownTransformer {
    /// Returns the transformer of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = KNOWN_TRANSFORMERS.into_iter();
        all.find(|known| known.name == name)
    }

    /// Returns its shapes.
    pub fn transformer(&self) -> Transformer {
        let [
            layers,
            hidden,
            heads,
            kv_heads,
            feed_forward,
            sequence,
            vocabulary,
        ] = self.sizes;
        Transformer {
            name: self.name.to_owned(),
            layers,
            hidden,
            heads,
            kv_heads,
            feed_forward,
            sequence,
            vocabulary,
            family: self.family,
            attention: self.attention,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_what_their_names_say() {
        let billions = |name| {
            let known = KnownTransformer::named(name).unwrap();
            known.transformer().checked().unwrap().parameters() as f64 / 1e9
        };
        for (name, expected) in [
            ("gpt3-175b", 174.6),
            ("gpt2", 0.1244),
            ("gpt2-medium", 0.3548),
            ("gpt2-large", 0.774),
            ("gpt2-xl", 1.558),
            ("llama2-7b", 6.74),
            ("llama2-13b", 13.02),
            ("llama2-70b", 68.98),
            ("mistral-7b", 7.24),
            ("tinyllama", 1.10),
            ("llama3-8b", 8.03),
            ("llama3-70b", 70.55),
        ] {
            let own = billions(name);
            assert!((own / expected - 1.0).abs() < 0.001, "{name}: {own}");
        }
    }
}
