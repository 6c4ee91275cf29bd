//! Costs of a transformer that nobody here can run: from its shapes, a card's data sheet and one
//! efficiency curve.
//!
//! A [`Transformer`] says what is multiplied and what is stored; a [`TensorGroup`] of cards says how long
//! that takes; [`Transformer::profile`] puts both into a [`Profile`](crate::Profile), for which all
//! else is planned and simulated as for a measured one. Nothing is assumed anywhere else:
//!
//! - **Matrix products** take their FLOPs at a share of the card's peak, which falls with the smallest
//!   of the product's three dimensions ([`Efficiency::share`]). Attention's two products are
//!   such products, the size of a head being their smallest dimension.
//! - **All else** (norms, dropout, softmax, activation functions) takes the time that bytes take to
//!   and from the card's memory: so many times what the layer stores.
//! - **Tensor parallelism** divides products and bytes among a group's cards, and adds two
//!   all-reduces to the forward of a block and two to its backward.
//! - **Memory** is what Korthikanti et al. count (arXiv:2205.05198, table 2).

mod efficiency;
mod known;
mod layers;
mod parse;
mod transformer;

pub use efficiency::Efficiency;
pub use known::{KNOWN_TRANSFORMERS, KnownTransformer};
pub use layers::TensorGroup;
pub use transformer::{Attention, Family, Transformer, TransformerError};
