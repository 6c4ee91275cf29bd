//! Transformers by name.

use super::transformer::{Attention, Family, Transformer};

/// A transformer that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTransformer {
    /// The name.
    pub name: &'static str,
    /// Layers, hidden size, heads, heads of keys and values, inner size of the feed-forward part,
    /// sequence and vocabulary.
    sizes: [usize; 7],
    family: Family,
    attention: Attention,
    /// Where the sizes are from.
    pub source: &'static str,
}

/// The ones that there are.
pub const KNOWN_TRANSFORMERS: [KnownTransformer; 4] = [
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

impl KnownTransformer {
    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = KNOWN_TRANSFORMERS.into_iter();
        all.find(|known| known.name == name)
    }

    /// Its shapes.
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
            ("llama2-7b", 6.74),
            ("llama3-8b", 8.03),
            ("llama3-70b", 70.55),
        ] {
            let own = billions(name);
            assert!((own / expected - 1.0).abs() < 0.001, "{name}: {own}");
        }
    }
}
