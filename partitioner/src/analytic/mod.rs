//! Costs of a transformer without running it: from its shapes, a card's data sheet and one efficiency
//! curve.
//!
//! A [`Transformer`] determines the products and the stored bytes; a [`TensorGroup`] of cards determines
//! their times; [`Transformer::profile`] combines both into a [`Profile`](crate::Profile), which is
//! planned and simulated like a measured one. All assumptions are here:
//!
//! - **Matrix products** take their FLOPs at a share of the card's peak, which falls with the smallest
//!   of the product's three dimensions ([`Efficiency::share`]). Attention's two products are
//!   such products, the size of a head being their smallest dimension.
//! - **All else** (norms, dropout, softmax, activation functions) takes the time to move bytes to and
//!   from the card's memory: a multiple of the bytes that the layer stores.
//! - **Tensor parallelism** divides products and bytes among a group's cards, and adds two
//!   all-reduces to the forward of a block and two to its backward.
//! - **Memory** follows Korthikanti et al. (arXiv:2205.05198, table 2).

mod efficiency;
mod known;
mod layers;
mod parse;
mod transformer;

pub use efficiency::Efficiency;
pub use known::{KNOWN_TRANSFORMERS, KnownTransformer};
pub use layers::TensorGroup;
pub use transformer::{Attention, Family, Transformer, TransformerError};
