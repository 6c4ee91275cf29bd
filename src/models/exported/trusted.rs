//! Operators whose kernels trust what they are given: it is checked here.
//!
//! Found by calling each operator of libtorch 2.11 with changed shapes and numbers under
//! `tests/exported/guard.c`. Those that no model's `forward` calls by itself are refused
//! ([`is_inner`]); these are checked before they run.

use tch::{Kind, Tensor};

use super::program::{Argument, Node};
use super::recurrent::Recurrent;

/// What is checked before an operator runs.
#[derive(Debug)]
pub(super) enum Trusted {
    Recurrent(Recurrent),
    /// Where indices and offsets are, and whether the end is the last offset.
    EmbeddingBag([usize; 2], bool),
}

impl Trusted {
    /// None where libtorch checks what the node gives.
    ///
    /// # Errors
    /// An argument that must be fixed is not.
    pub(super) fn of(node: &Node) -> anyhow::Result<Option<Self>> {
        Ok(match node.operator() {
            "embedding_bag" => {
                let ends = match node.argument("include_last_offset") {
                    None => false,
                    Some(Argument::Bool(ends)) => *ends,
                    Some(other) => anyhow::bail!("its include_last_offset is {other:?}"),
                };
                let places = places(node, ["indices", "offsets"])?;
                Some(Self::EmbeddingBag(places, ends))
            }
            _ => Recurrent::of(node)?.map(Self::Recurrent),
        })
    }

    /// Checks the tensors that the operator is about to be given.
    ///
    /// # Errors
    /// The operator would read or write beyond one of them.
    pub(super) fn check(&self, tensors: &[&Tensor]) -> anyhow::Result<()> {
        match self {
            Self::Recurrent(own) => own.check(tensors),
            Self::EmbeddingBag(places, ends) => {
                let [Some(indices), Some(offsets)] = places.map(|at| tensors.get(at)) else {
                    anyhow::bail!("a tensor that it takes is absent");
                };
                bags(indices.numel() as i64, offsets, *ends)
            }
        }
    }
}

/// Where two arguments are among the tensors that an operator is given.
fn places(node: &Node, names: [&str; 2]) -> anyhow::Result<[usize; 2]> {
    let mut places = [None; 2];
    let mut at = 0;
    for (name, argument) in &node.arguments {
        if let Some(own) = names.iter().position(|own| own == name) {
            places[own] = Some(at).filter(|_| matches!(argument, Argument::Value(_)));
        }
        at += argument.values().len();
    }
    match places {
        [Some(first), Some(second)] => Ok([first, second]),
        _ => anyhow::bail!("its {} and {} are no tensors", names[0], names[1]),
    }
}

/// Checks where bags of so many indices begin, and end where that is the last offset.
fn bags(count: i64, offsets: &Tensor, ends: bool) -> anyhow::Result<()> {
    if offsets.numel() == 0 {
        return Ok(());
    }
    let offsets = offsets.f_to_kind(Kind::Int64)?;
    for own in [offsets.f_min()?, offsets.f_max()?] {
        let own = own.f_int64_value(&[])?;
        anyhow::ensure!(
            (0..=count).contains(&own),
            "an offset is {own}, not within 0 to {count}"
        );
    }
    let last = offsets.f_flatten(0, -1)?.f_int64_value(&[-1])?;
    anyhow::ensure!(
        !ends || last == count,
        "its last offset is {last}, and it is given {count} indices"
    );
    Ok(())
}

/// Whether an operator is one that libtorch calls behind others, which check what it is given: in a
/// file its arguments may be any.
pub(super) fn is_inner(name: &str, overload: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "_amp_",
        "_batch_norm_with_update",
        "_convert_weight",
        "_ctc_loss",
        "_cudnn",
        "_dyn_quant",
        "_fft_",
        "_foreach_",
        "_fused_",
        "_make_per_",
        "_mkldnn",
        "_native_batch_norm",
        "_nested_",
        "_pdist_forward",
        "_reshape_alias",
        "_scaled_dot_product_cudnn",
        "_scaled_dot_product_efficient",
        "_scaled_dot_product_flash",
        "_scaled_dot_product_fused",
        "_segment_reduce",
        "_sparse_",
        "_thnn_",
        "_weight_int",
        "ctc_loss",
        "cudnn_",
        "fbgemm_",
        "lu_unpack",
        "miopen_",
        "mkldnn_",
        "native_batch_norm",
        "pdist",
        "quantize",
        "sparse_",
    ];
    // The plain one takes scales beside sizes, and trusts that they are the same.
    let antialiased = name.starts_with("_upsample_") && name.ends_with("_aa") && overload != "vec";
    // Changes tensors in place that no name tells.
    let writes = overload == "out" || overload.ends_with("_out");
    antialiased
        || writes
        || name.contains("_backward")
        || BEGINNINGS.iter().any(|own| name.starts_with(own))
}
