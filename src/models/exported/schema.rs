//! The parts read of the format of `torch.export.save`: PyTorch's `torch/_export/serde/schema.py`,
//! version 8.17.
//!
//! Arguments stay JSON here: their supported types are checked where their place in the model is known
//! too ([`super::read`]).

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;

/// Supported version of the schema.
pub(super) const VERSION: (u64, u64) = (8, 17);

#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub(super) major: u64,
    pub(super) minor: u64,
}

/// Read first, as other versions may differ in the rest.
#[derive(Debug, Deserialize)]
pub(super) struct Versioned {
    pub(super) schema_version: Version,
    pub(super) torch_version: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ExportedProgram {
    pub(super) graph_module: GraphModule,
    #[serde(default)]
    pub(super) range_constraints: HashMap<String, Range>,
    #[serde(default)]
    pub(super) verifiers: Vec<String>,
}

#[derive(Debug, Deserialize, Clone, Copy)]
pub(super) struct Range {
    pub(super) min_val: Option<i64>,
    pub(super) max_val: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: Graph,
    pub(super) signature: Signature,
}

#[derive(Debug, Deserialize)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub(super) sym_int_values: HashMap<String, SymInt>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    pub(super) outputs: Vec<Value>,
    #[serde(default)]
    pub(super) metadata: HashMap<String, String>,
    pub(super) name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedArgument {
    pub(super) name: String,
    pub(super) arg: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Signature {
    pub(super) input_specs: Vec<InputSpec>,
    pub(super) output_specs: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput {
        arg: Value,
    },
    Parameter {
        arg: Named,
        parameter_name: String,
    },
    Buffer {
        arg: Named,
        buffer_name: String,
        persistent: bool,
    },
    TensorConstant {
        arg: Named,
        tensor_constant_name: String,
    },
    CustomObj {
        custom_obj_name: String,
    },
    Token {},
    ConstantInput {
        name: String,
    },
}

#[derive(Debug, Deserialize, Clone)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Deserialize, Clone)]
pub(super) struct TensorMeta {
    pub(super) dtype: u64,
    pub(super) sizes: Vec<SymInt>,
    pub(super) requires_grad: bool,
    pub(super) strides: Vec<SymInt>,
    pub(super) storage_offset: SymInt,
    pub(super) layout: u64,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymInt {
    AsExpr(SymExpr),
    AsInt(i64),
}

#[derive(Debug, Deserialize, Clone)]
pub(super) struct SymExpr {
    pub(super) expr_str: String,
    /// Value for the example inputs.
    #[serde(default)]
    pub(super) hint: Value,
}

/// `data/weights/*_weights_config.json`, and the one of constants.
#[derive(Debug, Deserialize)]
pub(super) struct PayloadConfig {
    pub(super) config: BTreeMap<String, Payload>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Payload {
    pub(super) path_name: String,
    pub(super) use_pickle: bool,
    pub(super) tensor_meta: Option<TensorMeta>,
}

impl SymInt {
    pub(super) fn fixed(&self) -> Option<i64> {
        match self {
            Self::AsInt(number) => Some(*number),
            Self::AsExpr(_) => None,
        }
    }

    /// Value at export; `None` if not in the file.
    pub(super) fn example(&self) -> Option<i64> {
        match self {
            Self::AsInt(number) => Some(*number),
            Self::AsExpr(expr) => expr.hint["as_int"].as_i64(),
        }
    }

    /// Name of the symbol; `None` if it is computed from symbols.
    pub(super) fn symbol(&self) -> Option<&str> {
        let Self::AsExpr(expr) = self else {
            return None;
        };
        let rest = expr.expr_str.strip_prefix("Symbol('")?;
        let (name, rest) = rest.split_once('\'')?;
        // `Symbol('s0', positive=True, integer=True)`: nothing else is called.
        (rest.ends_with(')') && !rest.contains('(')).then_some(name)
    }
}
