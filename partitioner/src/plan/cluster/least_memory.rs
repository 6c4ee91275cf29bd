//! What shows without a search that nothing fits.

use std::fmt;

use super::ClusterOptions;
use crate::profile::Profile;
use crate::solve::When;
use crate::units::Bytes;
use crate::words::count;

/// Why nothing fits a cluster, whatever is chosen: parameters, gradients and optimizer state alone
/// are too much.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooLarge {
    /// For all cards together.
    Model {
        /// What they are of the whole model, of which one replica has all.
        states: Bytes,
        /// Cards of the cluster.
        cards: usize,
        /// What these have together.
        memory: Bytes,
    },
    /// For any card, though no layer is ever cut.
    Layer {
        /// The layer's name.
        layer: String,
        /// What they are of this layer, with the optimizer's state shared as far as it may be.
        states: Bytes,
        /// What the card with most memory has.
        memory: Bytes,
    },
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model {
                states,
                cards,
                memory,
            } => write!(
                f,
                "parameters, gradients and optimizer state alone are {states}, and {} have {memory} \
                 together",
                count(*cards, "card")
            ),
            Self::Layer {
                layer,
                states,
                memory,
            } => write!(
                f,
                "parameters, gradients and optimizer state of the layer `{layer}` alone are {states}, \
                 and no card has more than {memory}"
            ),
        }
    }
}

/// Why nothing fits, where that shows at once; none proves nothing.
///
/// Replicas make the sum no smaller: each has parameters and gradients of its own, and one state
/// is the least that they share.
///
/// # Complexity
/// O(layers + kinds of nodes).
pub fn too_large(profile: &Profile, options: &ClusterOptions) -> Option<TooLarge> {
    let kinds = options.cluster.kinds();
    // A card without a limit takes anything.
    let memory: Option<Vec<Bytes>> = kinds.iter().map(|kind| kind.card.memory).collect();
    let (memory, cards) = (memory?, options.cluster.cards());
    let all = kinds.iter().zip(&memory).fold(0_u64, |sum, (kind, own)| {
        sum.saturating_add(own.get().saturating_mul((kind.nodes * kind.cards) as u64))
    });
    let states = |parameters: u64, state: f64| Bytes((parameters as f64 * (2.0 + state)) as u64);
    let model = states(
        profile.parameter_bytes().iter().sum(),
        options.optimizer_state,
    );
    if model.get() > all {
        return Some(TooLarge::Model {
            states: model,
            cards,
            memory: Bytes(all),
        });
    }
    let sharing = match options.shard_optimizer {
        When::Never => 1,
        _ => options.replicas.unwrap_or(cards),
    };
    let largest = profile.layers().iter().max_by_key(|own| own.parameters)?;
    let layer = states(
        largest.parameters.get(),
        options.optimizer_state / sharing as f64,
    );
    let most = memory.into_iter().max()?;
    (layer > most).then(|| TooLarge::Layer {
        layer: largest.name.clone(),
        states: layer,
        memory: most,
    })
}
