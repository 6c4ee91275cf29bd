//! A program in executable form: a list of nodes over numbered values.

use std::collections::HashMap;
use std::sync::Arc;

use tch::Kind;

use super::form::Form;
use super::schema::Range;

/// A value of the program: a tensor or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ValueId(pub(super) usize);

/// Facts known about a value before running.
#[derive(Debug, Clone)]
pub(super) struct ValueInfo {
    pub(super) name: String,
    pub(super) origin: Origin,
    /// Sizes of a tensor; `None` if not in the file.
    pub(super) sizes: Option<Vec<Size>>,
    /// Sizes of the example; `None` if one is unknown.
    pub(super) example: Option<Vec<i64>>,
    /// Element type of a tensor.
    pub(super) kind: Option<Kind>,
    /// The symbol of a number.
    pub(super) symbol: Option<Arc<str>>,
    pub(super) is_number: bool,
}

/// A size of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Size {
    Fixed(i64),
    Symbol(Arc<str>),
    /// Computed from symbols: see [`super::expression`].
    Computed(Arc<str>),
}

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Index of the input.
    Input(usize),
    /// Index of the variable.
    Variable(usize),
    /// Index of the node.
    Node(usize),
}

/// A parameter, buffer or constant.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    /// Name in the model's `state_dict`.
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) value: ValueId,
    pub(super) form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Parameter,
    /// Saved in the `state_dict`.
    Buffer,
    /// Not saved: constants, and buffers that are not persistent.
    Constant,
}

/// A node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) what: What,
    pub(super) arguments: Vec<(String, Argument)>,
    pub(super) outputs: Vec<ValueId>,
    pub(super) module: Module,
    pub(super) modes: Modes,
}

/// The module in the user's model that made a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Module {
    /// From outermost to innermost: path (`layers.0.attn`) and class.
    pub(super) stack: Arc<[(String, String)]>,
}

/// Modes set around a node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Modes {
    pub(super) no_grad: bool,
    /// Autocast to this type; one that is not half precision switches it off.
    pub(super) autocast: Option<Kind>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    /// An operator of libtorch, by name and overload.
    Operator { name: String, overload: String },
    /// Size of a tensor's dimension.
    Size,
    /// Number of a tensor's elements.
    Count,
    /// Products of rows with the matrices of their experts: see [`super::grouped`].
    GroupedMm,
    /// Arithmetic on numbers.
    Scalar(Scalar),
}

/// Arithmetic on numbers with Python's semantics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Add,
    Sub,
    Mul,
    FloorDiv,
    TrueDiv,
    Mod,
    Neg,
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Min,
    Max,
    Not,
    Float,
    Int,
    Sqrt,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Argument {
    None,
    Value(ValueId),
    Values(Vec<Option<ValueId>>),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    /// Sizes, some of them computed.
    Sizes(Vec<Result<i64, ValueId>>),
    /// The stage's device, regardless of the file's.
    Device,
}

/// A program, read and verified.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) values: Vec<ValueInfo>,
    pub(super) variables: Vec<Variable>,
    /// The user's inputs, in order.
    pub(super) inputs: Vec<ValueId>,
    /// The user's outputs, in order.
    pub(super) outputs: Vec<ValueId>,
    pub(super) nodes: Vec<Node>,
    pub(super) ranges: HashMap<String, Range>,
    /// Descriptions of custom gradients in Python, as far as the file shows them.
    pub(super) own_gradients: Vec<String>,
}

impl Program {
    /// Returns the example's values of the symbols in the inputs' shapes.
    pub(super) fn symbols(&self) -> HashMap<Arc<str>, i64> {
        let inputs = self.inputs.iter().map(|id| &self.values[id.0]);
        let dimensions = inputs.flat_map(|input| input.sizes.iter().zip(&input.example));
        let dimensions = dimensions.flat_map(|(sizes, example)| sizes.iter().zip(example));
        let known = |(size, example): (&Size, &i64)| match size {
            Size::Symbol(symbol) => Some((Arc::clone(symbol), *example)),
            _ => None,
        };
        dimensions.filter_map(known).collect()
    }

    /// Whether only variables are changed in place: only then may a copy replace a view.
    pub(super) fn changes_variables_alone(&self) -> bool {
        self.nodes.iter().all(|node| {
            let changes = node.operator().ends_with('_');
            let first = node.arguments.first().map(|(_, own)| own.values());
            let first = first.and_then(|own| own.first().copied());
            let variable = first.map(|own| self.values[own.0].origin);
            !changes || matches!(variable, Some(Origin::Variable(_)))
        })
    }
}

impl Argument {
    /// Returns the values in the argument.
    pub(super) fn values(&self) -> Vec<ValueId> {
        match self {
            Self::Value(value) => vec![*value],
            Self::Values(values) => values.iter().flatten().copied().collect(),
            Self::Sizes(sizes) => sizes.iter().filter_map(|size| size.err()).collect(),
            _ => Vec::new(),
        }
    }
}

impl Node {
    /// Returns the values that the node uses.
    pub(super) fn inputs(&self) -> impl Iterator<Item = ValueId> {
        self.arguments.iter().flat_map(|(_, own)| own.values())
    }

    pub(super) fn argument(&self, name: &str) -> Option<&Argument> {
        let mut all = self.arguments.iter();
        Some(&all.find(|(own, _)| own == name)?.1)
    }

    /// Returns the operator's name without `aten::`; empty for arithmetic.
    pub(super) fn operator(&self) -> &str {
        match &self.what {
            What::Operator { name, .. } => name.strip_prefix("aten::").unwrap_or(name),
            _ => "",
        }
    }

    /// Describes the operation, for errors.
    pub(super) fn shown(&self) -> String {
        match &self.what {
            What::Operator { name, overload } if overload.is_empty() => name.clone(),
            What::Operator { name, overload } => format!("{name}.{overload}"),
            What::Size => "aten::sym_size".to_owned(),
            What::Count => "aten::sym_numel".to_owned(),
            What::GroupedMm => "transformers::grouped_mm_fallback".to_owned(),
            What::Scalar(what) => format!("{what:?} of sizes"),
        }
    }

    /// Describes the place, for errors.
    pub(super) fn place(&self) -> String {
        self.module.place(&self.name)
    }
}

impl Module {
    pub(super) fn place(&self, node: &str) -> String {
        match self.stack.last() {
            Some((path, class)) if !path.is_empty() => {
                format!("node `{node}` in module `{path}` ({class})")
            }
            Some((_, class)) => format!("node `{node}` of the model ({class})"),
            None => format!("node `{node}`"),
        }
    }
}
