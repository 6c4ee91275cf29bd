//! Checks of operators whose kernels trust their arguments.
//!
//! Found by calling each operator of libtorch 2.11 with modified shapes and numbers under
//! `tests/exported/guard.c`. Operators that no model's `forward` calls directly are rejected
//! ([`is_inner`]); these are checked before they run.

use tch::{Kind, Tensor};

use super::program::{Argument, Node};
use super::recurrent::Recurrent;

/// Checks before an operator runs; numbers are indices of the operator's tensors.
#[derive(Debug)]
pub(super) enum Trusted {
    Recurrent(Recurrent),
    EmbeddingBag {
        indices: usize,
        offsets: usize,
        /// Whether the last offset is the end.
        ends: bool,
    },
    WeightNorm {
        v: usize,
        g: usize,
        dimension: i64,
    },
    /// Weights and statistics, whose strides the backward kernel ignores.
    BatchNorm(Vec<usize>),
}

impl Trusted {
    /// Returns the checks; `None` if libtorch checks the node's arguments.
    ///
    /// # Errors
    /// An argument that must be constant is not.
    pub(super) fn of(node: &Node) -> anyhow::Result<Option<Self>> {
        let needed = |name: &str| {
            place(node, name).ok_or_else(|| anyhow::anyhow!("its {name} is no tensor"))
        };
        Ok(Some(match node.operator() {
            "embedding_bag" => Self::EmbeddingBag {
                indices: needed("indices")?,
                offsets: needed("offsets")?,
                ends: match node.argument("include_last_offset") {
                    None => false,
                    Some(Argument::Bool(ends)) => *ends,
                    Some(other) => anyhow::bail!("its include_last_offset is {other:?}"),
                },
            },
            "_weight_norm" => Self::WeightNorm {
                v: needed("v")?,
                g: needed("g")?,
                dimension: match node.argument("dim") {
                    None => 0,
                    Some(Argument::Int(dimension)) => *dimension,
                    Some(other) => anyhow::bail!("its dim is {other:?}"),
                },
            },
            "batch_norm" => {
                let names = ["weight", "bias", "running_mean", "running_var"];
                Self::BatchNorm(names.iter().filter_map(|name| place(node, name)).collect())
            }
            _ => return Ok(Recurrent::of(node)?.map(Self::Recurrent)),
        }))
    }

    /// Checks the tensors for the operator.
    ///
    /// # Errors
    /// The operator would read or write out of bounds, or divide by zero.
    pub(super) fn check(&self, tensors: &[&Tensor]) -> anyhow::Result<()> {
        let given = |at: usize| -> anyhow::Result<&Tensor> {
            let own = tensors.get(at).copied();
            own.ok_or_else(|| anyhow::anyhow!("a tensor that it takes is absent"))
        };
        match self {
            Self::Recurrent(own) => own.check(tensors),
            Self::EmbeddingBag {
                indices,
                offsets,
                ends,
            } => bags(given(*indices)?.numel() as i64, given(*offsets)?, *ends),
            Self::WeightNorm { v, g, dimension } => {
                weight_norm(&given(*v)?.size(), given(*g)?, *dimension)
            }
            Self::BatchNorm(places) => places.iter().try_for_each(|at| {
                let own = given(*at)?;
                anyhow::ensure!(
                    own.is_contiguous(),
                    "a weight of shape {:?} has strides {:?}, not one element behind the other",
                    own.size(),
                    own.stride()
                );
                Ok(())
            }),
        }
    }
}

/// Returns the index of an argument among an operator's tensors.
fn place(node: &Node, name: &str) -> Option<usize> {
    let at = node.arguments.iter().position(|(own, _)| own == name)?;
    let is_tensor = matches!(node.arguments[at].1, Argument::Value(_));
    let before = &node.arguments[..at];
    is_tensor.then(|| before.iter().map(|(_, own)| own.values().len()).sum())
}

/// Checks that there is a norm for each part of a weight.
fn weight_norm(v: &[i64], g: &Tensor, dimension: i64) -> anyhow::Result<()> {
    // -1 means one norm for all, which is computed by operators that check.
    let Ok(dimension) = usize::try_from(dimension) else {
        return Ok(());
    };
    let wanted = v.get(dimension).copied();
    anyhow::ensure!(
        !v.contains(&0) && wanted == Some(g.numel() as i64),
        "its v has shape {v:?} and its g {:?}, which is not a number for each of dimension \
         {dimension}",
        g.size()
    );
    Ok(())
}

/// Checks the offsets of bags with so many indices; the last offset may be the end.
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

/// Whether libtorch calls this operator only inside others, which check its arguments: in a file, these
/// may be anything.
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
        "_weight_norm_",
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
    // The plain one takes scales besides sizes, and trusts that they agree.
    let antialiased = name.starts_with("_upsample_") && name.ends_with("_aa") && overload != "vec";
    // Changes tensors in place without a sign in its name.
    let writes = overload == "out" || overload.ends_with("_out");
    antialiased
        || writes
        || name.contains("_backward")
        || BEGINNINGS.iter().any(|own| name.starts_with(own))
}
