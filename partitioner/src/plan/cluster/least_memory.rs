//! Quick proof that nothing fits a cluster.

use std::fmt;

use super::ClusterOptions;
use crate::profile::Profile;
use crate::solve::When;
use crate::units::Bytes;
use crate::words::count;

/// Why nothing fits a cluster under any choice: parameters, gradients and optimizer state alone are
/// too large.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooLarge {
    /// Too large for all cards together.
    Model {
        /// Their bytes for the whole model, which one replica holds completely.
        states: Bytes,
        /// Cards of the cluster.
        cards: usize,
        /// Memory of all cards together.
        memory: Bytes,
    },
    /// Too large for any card, as a layer is never cut.
    Layer {
        /// The layer's name.
        layer: String,
        /// Their bytes for this layer, with the optimizer's state shared as far as permitted.
        states: Bytes,
        /// Memory of the largest card.
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

/// Returns why nothing fits, if that is obvious; none proves nothing.
///
/// More replicas do not reduce the sum: each has its own parameters and gradients, and they share
/// at least one optimizer state.
///
/// # Complexity
/// O(layers + kinds of nodes).
pub fn too_large(profile: &Profile, options: &ClusterOptions) -> Option<TooLarge> {
    let kinds = options.cluster.kinds();
    // A card without a limit holds anything.
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
