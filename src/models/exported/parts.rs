//! Inputs, outputs and variables of each layer.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::cut::{self, Stretch};
use super::error::{Result, unsupported};
use super::program::{Argument, Origin, Program, Role, Size, ValueId, What};
use super::weights::Weights;

/// A layer: nodes of the program, and the values that cross its borders.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// Nodes to run: repeated arithmetic of earlier layers, then its own.
    pub(super) nodes: Vec<usize>,
    /// Inputs in order; numbers are tensors of one integer.
    pub(super) inputs: Vec<ValueId>,
    /// Outputs in order.
    pub(super) outputs: Vec<ValueId>,
    /// Numbers read from the shapes of inputs.
    pub(super) bound: Vec<Bound>,
    pub(super) variables: Vec<Own>,
    pub(super) is_last: bool,
}

/// A number that is a size of an input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) number: ValueId,
    pub(super) input: usize,
    pub(super) dimension: usize,
}

/// A variable used by a layer.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) variable: usize,
    /// Name in the pipeline; `None` for constants, which are not variables there.
    pub(super) name: Option<String>,
    /// The variable that this one is tied to.
    pub(super) tied_to: Option<String>,
}

/// Splits a program into layers.
///
/// # Errors
/// Several layers use a buffer that one of them changes.
pub(super) fn split(program: &mut Program, weights: &Weights) -> Result<Vec<Part>> {
    let stretches = cut::cut(program);
    let program = &*program;
    let owner = owners(program, &stretches);
    // Numbers that only their own layer can compute are sent as tensors.
    let mut travelling = BTreeSet::new();
    loop {
        let borders = borders(program, &stretches, &owner, &travelling);
        let mut parts = Vec::new();
        let mut more = Vec::new();
        for (number, stretch) in stretches.iter().enumerate() {
            let mut finder = Finder {
                program,
                stretch,
                inputs: &borders[number],
                repeated: Vec::new(),
                bound: Vec::new(),
                lost: Vec::new(),
                found: HashSet::new(),
            };
            for node in &program.nodes[stretch.nodes.clone()] {
                node.inputs().for_each(|value| finder.find(value));
            }
            more.append(&mut finder.lost);
            let mut nodes = finder.repeated;
            nodes.sort_unstable();
            nodes.extend(stretch.nodes.clone());
            parts.push(Part {
                name: stretch.name.clone(),
                nodes,
                inputs: borders[number].clone(),
                outputs: borders[number + 1].clone(),
                bound: finder.bound,
                variables: Vec::new(),
                is_last: number + 1 == stretches.len(),
            });
        }
        if more.is_empty() {
            own_variables(program, weights, &mut parts)?;
            return Ok(parts);
        }
        travelling.extend(more);
    }
}

/// Returns the layer of every node.
fn owners(program: &Program, stretches: &[Stretch]) -> Vec<usize> {
    let mut owner = vec![0; program.nodes.len()];
    for (number, stretch) in stretches.iter().enumerate() {
        owner[stretch.nodes.clone()].fill(number);
    }
    owner
}

/// Returns the live values before each layer, and after the last one.
fn borders(
    program: &Program,
    stretches: &[Stretch],
    owner: &[usize],
    travelling: &BTreeSet<ValueId>,
) -> Vec<Vec<ValueId>> {
    let count = stretches.len();
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    for (number, node) in program.nodes.iter().enumerate() {
        for value in node.inputs() {
            let last = last.entry(value).or_default();
            *last = (*last).max(owner[number]);
        }
    }
    for value in &program.outputs {
        last.insert(*value, count);
    }
    let mut borders = vec![Vec::new(); count + 1];
    for (number, value) in program.values.iter().enumerate() {
        let id = ValueId(number);
        let from = match value.origin {
            Origin::Input(_) => 0,
            Origin::Node(node) => owner[node] + 1,
            Origin::Variable(_) => continue,
        };
        if value.is_number && !travelling.contains(&id) {
            continue;
        }
        let Some(last) = last.get(&id) else {
            continue;
        };
        for border in borders.iter_mut().take(last + 1).skip(from) {
            border.push(id);
        }
    }
    borders[0].clone_from(&program.inputs);
    borders[count].clone_from(&program.outputs);
    borders
}

/// Finds how a layer obtains the numbers that it needs.
struct Finder<'a> {
    program: &'a Program,
    stretch: &'a Stretch,
    inputs: &'a [ValueId],
    repeated: Vec<usize>,
    bound: Vec<Bound>,
    /// Numbers that it cannot obtain.
    lost: Vec<ValueId>,
    found: HashSet<ValueId>,
}

impl Finder<'_> {
    fn find(&mut self, value: ValueId) {
        let info = &self.program.values[value.0];
        let Origin::Node(node) = info.origin else {
            return;
        };
        let known = !info.is_number
            || self.stretch.nodes.contains(&node)
            || self.inputs.contains(&value)
            || !self.found.insert(value);
        if known {
            return;
        }
        if let Some(bound) = info.symbol.as_ref().and_then(|own| self.bind(value, own)) {
            self.bound.push(bound);
            return;
        }
        let maker = &self.program.nodes[node];
        match &maker.what {
            What::Scalar(_) => maker.inputs().for_each(|value| self.find(value)),
            What::Size | What::Count => {
                let from = maker.arguments.first().map(|(_, own)| own);
                let here =
                    matches!(from, Some(Argument::Value(from)) if self.inputs.contains(from));
                if !here {
                    return self.lost.push(value);
                }
            }
            What::Operator { .. } | What::GroupedMm => return self.lost.push(value),
        }
        self.repeated.push(node);
    }

    fn bind(&self, number: ValueId, symbol: &str) -> Option<Bound> {
        let mut inputs = self.inputs.iter().enumerate();
        inputs.find_map(|(input, value)| {
            let sizes = self.program.values[value.0].sizes.as_ref()?;
            let is = |size: &Size| matches!(size, Size::Symbol(own) if **own == *symbol);
            Some(Bound {
                number,
                input,
                dimension: sizes.iter().position(is)?,
            })
        })
    }
}

/// Assigns to every layer the variables that it uses, under unique names.
fn own_variables(program: &Program, weights: &Weights, parts: &mut [Part]) -> Result<()> {
    let mut homes: HashMap<usize, String> = HashMap::new();
    let mut taken: HashSet<String> = HashSet::new();
    let twins = twins(program, weights)?;
    for part in parts {
        let mut used = BTreeSet::new();
        for node in &part.nodes {
            for value in program.nodes[*node].inputs() {
                if let Origin::Variable(variable) = program.values[value.0].origin {
                    used.insert(variable);
                }
            }
        }
        // An output that is a variable itself, or the model's only operation.
        for value in &part.outputs {
            if let Origin::Variable(variable) = program.values[value.0].origin {
                used.insert(variable);
            }
        }
        let mut here: HashMap<usize, String> = HashMap::new();
        for variable in used {
            let own = &program.variables[variable];
            let twin = twins[variable];
            if own.role == Role::Constant {
                part.variables.push(Own {
                    variable,
                    name: None,
                    tied_to: None,
                });
                continue;
            }
            if let Some(name) = here.get(&twin) {
                part.variables.push(Own {
                    variable,
                    name: Some(name.clone()),
                    tied_to: None,
                });
                continue;
            }
            let first = homes.get(&twin).cloned();
            let mut name = match &first {
                None => program.variables[twin].name.clone(),
                Some(_) => own.name.clone(),
            };
            if taken.contains(&name) {
                name = format!("{name}@{}", part.name.replace('.', "/"));
            }
            taken.insert(name.clone());
            here.insert(twin, name.clone());
            if first.is_none() {
                homes.insert(twin, name.clone());
            } else if own.role == Role::Buffer {
                // It cannot be changed: another place of use is a constant.
                if changes(program, variable) {
                    return Err(unsupported(
                        format!("the buffer `{}`", own.name),
                        "is used by several layers and changed by one",
                    ));
                }
                part.variables.push(Own {
                    variable,
                    name: None,
                    tied_to: None,
                });
                continue;
            }
            part.variables.push(Own {
                variable,
                name: Some(name),
                tied_to: first,
            });
        }
    }
    Ok(())
}

/// Returns, for every variable, the first one that is the same tensor.
fn twins(program: &Program, weights: &Weights) -> Result<Vec<usize>> {
    let mut twins = Vec::new();
    let mut firsts: HashMap<&str, usize> = HashMap::new();
    for (number, variable) in program.variables.iter().enumerate() {
        let stored = weights.get(&variable.name)?;
        let first = *firsts.entry(stored.entry()).or_insert(number);
        let other = &program.variables[first];
        if !stored.is(weights.get(&other.name)?) || other.role != variable.role {
            return Err(unsupported(
                format!("the tensor `{}`", variable.name),
                format!(
                    "shares its memory with `{}`, which has another form",
                    other.name
                ),
            ));
        }
        twins.push(first);
    }
    Ok(twins)
}

/// Whether a node changes a variable in place.
pub(super) fn changes(program: &Program, variable: usize) -> bool {
    let value = program.variables[variable].value;
    program.nodes.iter().any(|node| {
        let first = node.arguments.first().map(|(_, own)| own);
        let written = node.operator().ends_with('_') && first == Some(&Argument::Value(value));
        let running = ["running_mean", "running_var"];
        let moved = running.map(|name| node.argument(name) == Some(&Argument::Value(value)));
        written || moved.contains(&true)
    })
}
