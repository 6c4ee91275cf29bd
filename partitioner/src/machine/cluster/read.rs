//! Parser of a [`Cluster`] in TOML.

use std::path::Path;

use serde::Deserialize;

use super::{Card, Cluster, ClusterError, KnownNode, NodeKind, Peak};
use crate::cost::Link;
use crate::json::{ReadError, read_file};
use crate::machine::AllReduce;
use crate::units::Bytes;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFields {
    nodes: Vec<NodeFields>,
    #[serde(default)]
    links: LinkFields,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFields {
    count: usize,
    /// A ready-made node, whose values the other fields override.
    like: Option<String>,
    cards: Option<usize>,
    speed: Option<f64>,
    memory: Option<String>,
    teraflops: Option<f64>,
    memory_bandwidth: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFields {
    inside: Option<String>,
    between: Option<String>,
    nic_per_card: Option<bool>,
    all_reduce: Option<AllReduceName>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AllReduceName {
    Direct,
    Levels,
}

impl Cluster {
    /// Reads a cluster from a file in TOML.
    ///
    /// # Errors
    /// [`ClusterError`]; for the file with its name, the field and the broken rule.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ClusterError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let text = String::from_utf8(read_file(path)?);
        let text = text.map_err(|_| ReadError::new(&file, "", "is not UTF-8 text"))?;
        Self::from_toml(&text, &file)
    }

    /// Parses a cluster in TOML; errors call it `file`. If nodes are `like` ready-made ones,
    /// missing links are theirs, the slowest of several.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::machine::cluster::Cluster;
    ///
    /// let text = "
    /// [[nodes]]
    /// count = 4
    /// like = \"dgx-a100\"
    /// [[nodes]]
    /// count = 2
    /// cards = 4
    /// speed = 0.5
    /// memory = \"40GiB\"
    /// ";
    /// let cluster = Cluster::from_toml(text, "cluster.toml")?;
    /// assert_eq!((cluster.nodes(), cluster.cards()), (6, 40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ClusterError> {
        let wrong = |field: &str, rule: String| ReadError::new(file, field, rule);
        let fields: ClusterFields = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            wrong(&format!("line {line}"), error.message().to_owned())
        })?;
        let mut kinds = Vec::new();
        let mut known = Vec::new();
        for (index, node) in fields.nodes.iter().enumerate() {
            let field = format!("nodes[{index}]");
            let like = node.like.as_deref().map(KnownNode::named).transpose();
            let like = like.map_err(|error| wrong(&format!("{field}.like"), error.to_string()))?;
            kinds.push(
                node.kind(like)
                    .map_err(|(own, rule)| wrong(&format!("{field}.{own}"), rule))?,
            );
            known.extend(like);
        }
        let link = |name: &str, given: &Option<String>, of: fn(&KnownNode) -> Link| {
            let parsed = given.as_deref().map(str::parse::<Link>).transpose();
            let parsed =
                parsed.map_err(|error| wrong(&format!("links.{name}"), error.to_string()))?;
            let slowest = known.iter().map(of).min_by_key(|link| link.bandwidth());
            Ok::<_, ReadError>(parsed.or(slowest))
        };
        let links = &fields.links;
        let inside = link("inside", &links.inside, KnownNode::link_inside)?;
        let between = link("between", &links.between, KnownNode::link_between)?;
        let own = links.nic_per_card;
        let own = own.unwrap_or_else(|| known.iter().all(|known| known.nic_per_card));
        let cluster = Self::new(kinds, between)
            .map_err(|error| wrong("nodes", error.to_string()))?
            .with_nic_per_card(own);
        let cluster = match links.all_reduce {
            Some(AllReduceName::Direct) => cluster.with_all_reduce(AllReduce::Direct),
            _ => cluster,
        };
        Ok(match inside {
            Some(link) => cluster.with_link_inside(link),
            None => cluster,
        })
    }
}

impl NodeFields {
    fn kind(&self, like: Option<KnownNode>) -> Result<NodeKind, (&'static str, String)> {
        let own = like.map_or_else(Card::default, |known| known.card);
        let bytes = |name, given: &Option<String>| {
            let parsed = given.as_deref().map(str::parse::<Bytes>).transpose();
            parsed.map_err(|error| (name, error.to_string()))
        };
        let cards = self.cards.or(like.map(|known| known.cards));
        let cards = cards.ok_or_else(|| ("cards", "is missing, as is `like`".to_owned()))?;
        let flops = self.teraflops.map(|own| own * 1e12);
        let flops = flops.or(own.peak.map(|peak| peak.flops));
        let text = self
            .memory_bandwidth
            .as_deref()
            .map(|text| text.trim_end_matches("/s").to_owned());
        let bandwidth = bytes("memory_bandwidth", &text)?.map(|own| own.get() as f64);
        let bandwidth = bandwidth.or(own.peak.map(|peak| peak.bandwidth));
        let peak = match (flops, bandwidth) {
            (Some(flops), Some(bandwidth)) => Some(Peak { flops, bandwidth }),
            (None, None) => None,
            (Some(_), None) => {
                return Err((
                    "memory_bandwidth",
                    "is missing beside `teraflops`".to_owned(),
                ));
            }
            (None, Some(_)) => {
                return Err((
                    "teraflops",
                    "is missing beside `memory_bandwidth`".to_owned(),
                ));
            }
        };
        Ok(NodeKind {
            nodes: self.count,
            cards,
            card: Card {
                speed: self.speed.unwrap_or(own.speed),
                memory: bytes("memory", &self.memory)?.or(own.memory),
                peak,
            },
        })
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.bytes().take(offset);
    1 + before.filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"
[[nodes]]
count = 2
like = "dgx-a100"
memory = "70GiB"

[[nodes]]
count = 1
cards = 4
speed = 0.25

[links]
between = "10GB/s,9us"
all_reduce = "direct"
"#;

    #[test]
    fn a_file_says_all_there_is() {
        let cluster = Cluster::from_toml(TEXT, "cluster.toml").unwrap();
        let [large, small] = cluster.kinds() else {
            panic!("{cluster:?}");
        };
        assert_eq!((large.nodes, large.cards), (2, 8));
        assert_eq!(large.card.memory, Some("70GiB".parse().unwrap()));
        assert_eq!(large.card.peak.map(|peak| peak.flops), Some(312e12));
        assert_eq!(
            (small.cards, small.card.speed, small.card.memory),
            (4, 0.25, None)
        );
        assert_eq!(cluster.link_between(), "10GB/s,9us".parse().ok());
        assert_eq!(cluster.link_inside(), "300GB/s,3us".parse().ok());
        assert_eq!(cluster.all_reduce, AllReduce::Direct);
    }

    #[test]
    fn errors_name_file_field_and_rule() {
        for (from, to, says) in [
            (
                "count = 2",
                "count = 0",
                "cluster.toml: nodes: 0 nodes of 8 cards",
            ),
            ("count = 2", "count = -2", "cluster.toml: line 3: "),
            (
                "count = 2",
                "number = 2",
                "cluster.toml: line 3: unknown field `number`",
            ),
            (
                "dgx-a100",
                "dgx-b100",
                "nodes[0].like: there is no ready-made node `dgx-b100`",
            ),
            ("70GiB", "lots", "nodes[0].memory: "),
            ("cards = 4", "", "nodes[1].cards: is missing, as is `like`"),
            (
                "0.25",
                "-1.0",
                "nodes: speed -1: must be from 0.001 to 1000",
            ),
            (
                "speed = 0.25",
                "teraflops = 3.0",
                "nodes[1].memory_bandwidth: is missing beside",
            ),
            ("10GB/s,9us", "10GB", "links.between: "),
            (
                "\"direct\"",
                "\"star\"",
                "cluster.toml: line 14: unknown variant `star`",
            ),
        ] {
            let text = TEXT.replacen(from, to, 1);
            let error = Cluster::from_toml(&text, "cluster.toml").unwrap_err();
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_text_never_panics(at in 0..TEXT.len(), byte in 0_u8..128) {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = byte;
            let _ = Cluster::from_toml(&String::from_utf8(text).unwrap(), "cluster.toml");
        }
    }
}
