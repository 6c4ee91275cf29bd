//! Times and memory of the layers of a transformer on a group of cards.

use super::efficiency::Efficiency;
use super::transformer::{Attention, Family, Transformer};
use crate::cost::Link;
use crate::json::ReadError;
use crate::machine::cluster::Peak;
use crate::profile::{Footprint, LayerProfile, LayerTimes, Profile};
use crate::units::{Bytes, Micros};

/// Bytes of a value or parameter.
const WIDTH: f64 = 2.0;
/// Bytes of a logit, which is summed in 32 bits.
const LOGIT: f64 = 4.0;
/// Sizes of micro-batches with computed times; times between them are interpolated linearly.
const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Cards that share every layer (tensor parallelism): one device for the pipeline.
///
/// # Examples
/// ```
/// use gpipe_partitioner::analytic::{TensorGroup, Transformer};
/// use gpipe_partitioner::machine::cluster::KnownNode;
///
/// let node = KnownNode::named("dgx-a100")?;
/// let gpt: Transformer = "gpt3-175b".parse()?;
/// let alone = TensorGroup::new(node.card.peak.unwrap());
/// let eight = alone.with_cards(8, Some(node.link_inside()));
/// let time = |group: TensorGroup| {
///     let profile = gpt.profile(&group)?;
///     Ok::<f64, Box<dyn std::error::Error>>(profile.layers()[1].times.forward.get())
/// };
/// let speedup = time(alone)? / time(eight)?;
/// // All-reduces, and products that are narrower, cost some of the eight.
/// assert!(speedup > 5.0 && speedup < 8.0, "{speedup}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "tensor parallelism")]
pub struct TensorGroup {
    peak: Peak,
    cards: usize,
    link: Option<Link>,
    sequence_parallel: bool,
    efficiency: Efficiency,
}

impl TensorGroup {
    /// Group of one card of that peak, with the [stated](Efficiency::STATED) curve.
    pub const fn new(peak: Peak) -> Self {
        Self {
            peak,
            cards: 1,
            link: None,
            sequence_parallel: true,
            efficiency: Efficiency::STATED,
        }
    }

    /// Sets the number of cards (0 counts as 1), and the link between any two of them; without a link,
    /// all-reduces take no time.
    #[must_use]
    pub const fn with_cards(mut self, cards: usize, link: Option<Link>) -> Self {
        self.cards = if cards == 0 { 1 } else { cards };
        self.link = link;
        self
    }

    /// Sets whether norms and dropouts are divided by the sequence, which is the default (Korthikanti et al.,
    /// arXiv:2205.05198): an all-gather and a reduce-scatter then replace each all-reduce, in the same time.
    #[must_use]
    pub const fn with_sequence_parallel(mut self, divided: bool) -> Self {
        self.sequence_parallel = divided;
        self
    }

    /// Sets another efficiency curve.
    #[must_use]
    pub const fn with_efficiency(mut self, efficiency: Efficiency) -> Self {
        self.efficiency = efficiency;
        self
    }

    /// Seconds of the product of a matrix of `rows` by `inner` with one of `inner` by `columns` on one card.
    fn product(&self, rows: f64, inner: f64, columns: f64) -> f64 {
        let share = self.efficiency.share(rows.min(inner).min(columns));
        2.0 * rows * inner * columns / (self.peak.flops * share)
    }

    /// Seconds to move `bytes` to and from a card's memory.
    fn moved(&self, bytes: f64) -> f64 {
        bytes / self.peak.bandwidth
    }

    /// Seconds of an all-reduce of `bytes` over the group, in a ring.
    fn all_reduce(&self, bytes: f64) -> f64 {
        let others = (self.cards - 1) as f64;
        let Some(link) = self.link.filter(|_| self.cards > 1) else {
            return 0.0;
        };
        let sent = 2.0 * others / self.cards as f64 * bytes;
        let share = self.efficiency.link;
        let copied = link
            .bandwidth()
            .map_or(0.0, |own| sent / (own.get() as f64 * share));
        copied + 2.0 * others * link.latency().get() * 1e-6
    }

    /// Bytes stored per card, and by all cards together: of `divided` bytes, and of `whole` bytes, which only
    /// sequence parallelism divides.
    fn stored(&self, (divided, whole): (f64, f64)) -> (f64, f64) {
        let cards = self.cards as f64;
        let whole = if self.sequence_parallel {
            whole / cards
        } else {
            whole
        };
        let each = divided / cards + whole;
        (each, each * cards)
    }
}

/// Converts seconds to times.
fn times(forward: f64, input: f64, weight: f64) -> LayerTimes {
    let micros = |seconds: f64| Micros::saturating(seconds * 1e6);
    LayerTimes::new(micros(forward), micros(input), micros(weight))
}

fn bytes(amount: f64) -> Bytes {
    // A cast saturates.
    Bytes(amount.ceil() as u64)
}

/// Times and memory of a layer at one size of micro-batch.
type Priced = (LayerTimes, Footprint);

impl Transformer {
    /// Returns the costs of its layers on a group of cards: the embedding, the blocks, the norm if it is a
    /// layer of its own, as in a Llama, and the head with the loss. Bytes are totals over the cards of the
    /// group.
    ///
    /// # Errors
    /// [`ReadError`] if a layer has more bytes than a profile may have.
    pub fn profile(&self, group: &TensorGroup) -> Result<Profile, ReadError> {
        let layer = |name: String, parameters: u64, of: &dyn Fn(f64) -> Priced| {
            let sized = SIZES.map(|size| (size, of(size as f64)));
            let (_, (times, footprint)) = sized[0];
            let mut layer = LayerProfile::new(name, times);
            layer.footprint = footprint;
            layer.parameters = bytes(parameters as f64 * WIDTH);
            layer.with_curve(
                sized[1..]
                    .iter()
                    .map(|(size, own)| (*size, own.0))
                    .collect(),
            )
        };
        let mut layers = vec![layer(
            "embedding".to_owned(),
            self.embedding_parameters(),
            &|size| self.embedding(group, size),
        )];
        let block = layer(String::new(), self.block_parameters(), &|size| {
            self.block(group, size)
        });
        layers.extend((0..self.layers).map(|number| {
            let mut own = block.clone();
            own.name = format!("block.{number}");
            own
        }));
        if self.has_norm_layer() {
            layers.push(layer("norm".to_owned(), 0, &|size| self.norm(group, size)));
        }
        layers.push(layer("head".to_owned(), self.head_parameters(), &|size| {
            self.head(group, size)
        }));
        let device = match group.cards {
            1 => "a card".to_owned(),
            cards => format!("{cards} cards"),
        };
        let how = format!(
            "computed from the shapes of {} for {:.0} TFLOP/s and {:.0} GB/s a card",
            self.name,
            group.peak.flops / 1e12,
            group.peak.bandwidth / 1e9
        );
        let tokens = self.sequence as f64;
        // A token id has 64 bits.
        Ok(Profile::new(device, 1, layers)?
            .with_input(bytes(8.0 * tokens))
            .with_origin(None, Some(how))
            .with_precision("bf16"))
    }

    /// Bytes of the hidden values of `size` samples.
    fn values(&self, size: f64) -> f64 {
        WIDTH * size * self.sequence as f64 * self.hidden as f64
    }

    fn block(&self, group: &TensorGroup, size: f64) -> Priced {
        let tokens = size * self.sequence as f64;
        let cards = group.cards as f64;
        let (h, f) = (self.hidden as f64, self.feed_forward as f64);
        let kv = self.kv_size() as f64;
        // Two matrices are divided by columns, two by rows.
        let products = group.product(tokens, h, (h + 2.0 * kv) / cards)
            + group.product(tokens, h / cards, h)
            + group.product(tokens, h, self.ways_in() as f64 * f / cards)
            + group.product(tokens, f / cards, h);
        let share = group.efficiency.share(h / self.heads as f64);
        let attention = tokens * self.attention_flops() / cards / (group.peak.flops * share);
        let again = match self.attention {
            // Scores are computed once more in the backward.
            Attention::Flash => 2.5,
            Attention::Stored => 2.0,
        };
        let (divided, whole) = self.stored();
        let (each, all) = group.stored((divided * tokens, whole * tokens));
        let reduces = 2.0 * group.all_reduce(self.values(size));
        let curve = group.efficiency;
        let forward = products + attention + group.moved(curve.moved_forward * each) + reduces;
        let input =
            products + again * attention + group.moved(curve.moved_backward * each) + reduces;
        let footprint = Footprint {
            activations: bytes(all),
            after_input: Some(bytes(self.stored_between_halves() * tokens)),
            output: bytes(self.values(size)),
            // Gradients of the widest values.
            temporary: bytes(WIDTH * tokens * f * self.ways_in() as f64),
            ..Footprint::default()
        };
        (times(forward, input, products), footprint)
    }

    fn embedding(&self, group: &TensorGroup, size: f64) -> Priced {
        let values = self.values(size);
        let (each, all) = group.stored((0.0, values));
        let curve = group.efficiency;
        let forward = group.moved(curve.moved_forward * each) + group.all_reduce(values);
        let weight = group.moved(curve.moved_backward * each);
        let footprint = Footprint {
            activations: bytes(all),
            after_input: Some(bytes(values)),
            output: bytes(values),
            ..Footprint::default()
        };
        (times(forward, 0.0, weight), footprint)
    }

    /// Whether the norm before the head's product is a layer of its own: in a GPT it belongs to the head.
    fn has_norm_layer(&self) -> bool {
        self.family == Family::Llama
    }

    fn norm(&self, group: &TensorGroup, size: f64) -> Priced {
        let values = self.values(size);
        let (each, all) = group.stored((0.0, values));
        let curve = group.efficiency;
        let forward = group.moved(curve.moved_forward * each);
        let input = group.moved(curve.moved_backward * each);
        let footprint = Footprint {
            activations: bytes(all),
            output: bytes(values),
            ..Footprint::default()
        };
        (times(forward, input, 0.0), footprint)
    }

    fn head(&self, group: &TensorGroup, size: f64) -> Priced {
        let tokens = size * self.sequence as f64;
        let cards = group.cards as f64;
        let (h, words) = (self.hidden as f64, self.vocabulary as f64);
        let product = group.product(tokens, h, words / cards);
        let logits = LOGIT * tokens * words;
        // Inputs of the product, and of the norm if it is part of the head.
        let inputs = if self.has_norm_layer() { 1.0 } else { 2.0 };
        let (each, all) = group.stored((logits, inputs * self.values(size)));
        let curve = group.efficiency;
        let reduce = group.all_reduce(self.values(size));
        let forward = product + group.moved(curve.moved_forward * each);
        let input = product + group.moved(curve.moved_backward * each) + reduce;
        let footprint = Footprint {
            activations: bytes(all),
            after_input: Some(bytes(WIDTH * tokens * words + self.values(size))),
            loss: bytes(logits),
            output: Bytes::ZERO,
            // Gradients of the logits.
            temporary: bytes(WIDTH * tokens * words),
            ..Footprint::default()
        };
        (times(forward, input, product), footprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAK: Peak = Peak {
        flops: 312e12,
        bandwidth: 2039e9,
    };

    fn gpt() -> Transformer {
        let gpt = Transformer::gpt(48, 6144, 48, 1024, 51_200).unwrap();
        gpt.with_attention(Attention::Stored)
    }

    #[test]
    fn a_group_stores_what_its_cards_store_together() {
        let link = "300GB/s,3us".parse().ok();
        let sbh = 1024.0 * 6144.0;
        let scores = 5.0 * 48.0 * 1024.0 * 1024.0;
        let stored = |group: TensorGroup| {
            let profile = gpt().profile(&group).unwrap();
            profile.layers()[1].footprint.activations.get() as f64
        };
        let eight = TensorGroup::new(PEAK).with_cards(8, link);
        assert_eq!(stored(TensorGroup::new(PEAK)), 34.0 * sbh + scores);
        assert_eq!(stored(eight), 34.0 * sbh + scores);
        // Each of the eight cards stores the part that only the sequence divides.
        let whole = eight.with_sequence_parallel(false);
        assert_eq!(stored(whole), (24.0 + 8.0 * 10.0) * sbh + scores);
    }

    #[test]
    fn all_reduces_are_priced_by_the_link() {
        let time = |bandwidth: &str| {
            let link = format!("{bandwidth},0us").parse().ok();
            let group = TensorGroup::new(PEAK).with_cards(4, link);
            let profile = gpt().profile(&group).unwrap();
            let times = profile.layers()[1].times;
            (
                times.forward.get(),
                times.backward_input.get(),
                times.backward_weight.get(),
            )
        };
        let (fast, slow) = (time("300GB/s"), time("30GB/s"));
        // Two all-reduces of 2 s h bytes, of which each card sends 2 · 3/4.
        let bytes = 2.0 * 1.5 * 2.0 * 1024.0 * 6144.0;
        let share = Efficiency::STATED.link;
        let more = (bytes / 30e9 - bytes / 300e9) * 1e6 / share;
        assert!((slow.0 - fast.0 - more).abs() < 1e-6);
        assert!((slow.1 - fast.1 - more).abs() < 1e-6);
        assert_eq!(slow.2, fast.2);
    }

    #[test]
    fn a_micro_batch_of_more_samples_takes_no_longer_by_sample() {
        let gpt = Transformer::gpt(2, 1024, 16, 64, 5_000).unwrap();
        let profile = gpt.profile(&TensorGroup::new(PEAK)).unwrap();
        for layer in 0..4 {
            let by_sample = |size: usize| {
                let cost = profile.costs(size)[layer];
                (cost.forward + cost.backward).get() / size as f64
            };
            let sizes: Vec<f64> = (1..80).map(by_sample).collect();
            // Products of 64 tokens reach little of the peak.
            assert!(sizes[0] >= sizes[63], "{layer}: {sizes:?}");
            assert!(sizes.windows(2).all(|two| two[1] <= two[0] * (1.0 + 1e-9)));
        }
    }
}
