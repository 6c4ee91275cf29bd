//! The supported targets of nodes.

use super::error::{Result, unsupported};
use super::program::{Scalar, What};
use super::trusted;

/// Operators that access memory outside of tensors, or bypass autograd.
const REFUSED: &[&str] = &[
    "from_file",
    "set_",
    "set_data",
    "resize_",
    "resize_as_",
    "as_strided_",
    "_resize_output_",
    "requires_grad_",
    "retain_grad",
    "_use_cudnn_rnn_flatten_weight",
    "record_stream",
    "_print",
];

/// Whether a node only checks conditions that held at export. (Sizes are checked against the file where
/// inputs come in.)
pub(super) fn checks_only(target: &str) -> bool {
    let name = target.strip_prefix("torch.ops.aten.").unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default();
    [
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_assert_async",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    ]
    .contains(&name)
}

/// Returns the operation of a node.
pub(super) fn what(target: &str, place: &str) -> Result<What> {
    if let Some(operator) = target.strip_prefix("torch.ops.") {
        return of_libtorch(operator, place);
    }
    let (module, name) = target.rsplit_once('.').unwrap_or(("", target));
    let scalar = match (module, name) {
        ("_operator", "add") => Scalar::Add,
        ("_operator", "sub") => Scalar::Sub,
        ("_operator", "mul") => Scalar::Mul,
        ("_operator", "floordiv") => Scalar::FloorDiv,
        ("_operator", "truediv") => Scalar::TrueDiv,
        ("_operator", "mod") => Scalar::Mod,
        ("_operator", "neg") => Scalar::Neg,
        ("_operator", "pow") => Scalar::Pow,
        ("_operator", "eq") => Scalar::Eq,
        ("_operator", "ne") => Scalar::Ne,
        ("_operator", "lt") => Scalar::Lt,
        ("_operator", "le") => Scalar::Le,
        ("_operator", "gt") => Scalar::Gt,
        ("_operator", "ge") => Scalar::Ge,
        ("torch", "sym_min") => Scalar::Min,
        ("torch", "sym_max") => Scalar::Max,
        ("torch", "sym_not") => Scalar::Not,
        ("torch", "sym_float") => Scalar::Float,
        ("torch" | "math", "sym_int" | "trunc") => Scalar::Int,
        ("torch", "_sym_sqrt" | "sym_sqrt") | ("math", "sqrt") => Scalar::Sqrt,
        _ => return Err(unsupported(place, format!("`{target}` is not known"))),
    };
    Ok(What::Scalar(scalar))
}

fn of_libtorch(operator: &str, place: &str) -> Result<What> {
    let parts: Vec<&str> = operator.split('.').collect();
    let [namespace, name, overload] = parts[..] else {
        return Err(unsupported(
            place,
            format!("`{operator}` is no operator's name"),
        ));
    };
    if (namespace, name) == ("transformers", "grouped_mm_fallback") {
        return Ok(What::GroupedMm);
    }
    if namespace != "aten" {
        return Err(unsupported(
            place,
            format!("`{operator}` is no operator of PyTorch itself, but of `{namespace}`"),
        ));
    }
    match name {
        "sym_size" => return Ok(What::Size),
        "sym_numel" => return Ok(What::Count),
        name if REFUSED.contains(&name) || trusted::is_inner(name, overload) => {
            return Err(unsupported(
                place,
                format!("`{operator}` is not allowed in a program"),
            ));
        }
        _ => {}
    }
    Ok(What::Operator {
        name: format!("aten::{name}"),
        overload: if overload == "default" {
            String::new()
        } else {
            overload.to_owned()
        },
    })
}
