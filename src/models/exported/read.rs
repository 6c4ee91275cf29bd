//! Converts the graph of a file to a [`Program`]: resolves names, and inlines subgraphs.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::arguments::{self, Names};
use super::error::{Result, damaged, unsupported};
use super::form::{Form, kind_of, place};
use super::program::{
    Argument, Modes, Module, Node, Origin, Program, Role, Size, ValueId, ValueInfo, Variable, What,
};
use super::schema::{self, ExportedProgram, Graph, InputSpec, Named, SymInt, TensorMeta};
use super::{backward, operators};

/// Limit of nested subgraphs.
const MAX_DEPTH: usize = 16;

/// Checks a program and makes it a single list of nodes.
///
/// # Errors
/// An unsupported feature, with its place in the model.
pub(super) fn read(program: ExportedProgram) -> Result<Program> {
    let verifier = program.verifiers.first().map_or("none", String::as_str);
    if verifier != "TRAINING" {
        return Err(unsupported(
            "the program",
            format!(
                "was lowered for inference (verifier {verifier}): save what torch.export.export \
                 returns, without run_decompositions"
            ),
        ));
    }
    let module = program.graph_module;
    let mut reader = Reader {
        program: Program {
            values: Vec::new(),
            variables: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            nodes: Vec::new(),
            ranges: program.range_constraints,
            own_gradients: Vec::new(),
        },
    };
    let mut names = Names::default();
    for spec in module.signature.input_specs {
        reader.input(spec, &module.graph, &mut names)?;
    }
    reader.graph(&module.graph, &mut names, Modes::default(), 0)?;
    for spec in &module.signature.output_specs {
        let value = output(spec, &names)?;
        reader.program.outputs.push(value);
    }
    if reader.program.outputs.is_empty() {
        return Err(damaged("the signature", "has no output"));
    }
    Ok(reader.program)
}

struct Reader {
    program: Program,
}

impl Reader {
    fn input(&mut self, spec: InputSpec, graph: &Graph, names: &mut Names) -> Result<()> {
        match spec {
            InputSpec::UserInput { arg } => {
                let Some(name) = tensor_name(&arg) else {
                    return Err(unsupported(
                        "the signature",
                        format!("takes an input that is no tensor ({arg}): give the model tensors"),
                    ));
                };
                let value = self.value(name, Origin::Input(self.program.inputs.len()), graph)?;
                self.program.inputs.push(value);
                names.add(name, value)
            }
            InputSpec::Parameter {
                arg,
                parameter_name,
            } => self.variable(&arg, parameter_name, Role::Parameter, graph, names),
            InputSpec::Buffer {
                arg,
                buffer_name,
                persistent,
            } => {
                let role = if persistent {
                    Role::Buffer
                } else {
                    Role::Constant
                };
                self.variable(&arg, buffer_name, role, graph, names)
            }
            InputSpec::TensorConstant {
                arg,
                tensor_constant_name,
            } => self.variable(&arg, tensor_constant_name, Role::Constant, graph, names),
            // Its value is already in the nodes.
            InputSpec::ConstantInput { name } => {
                let _ = name;
                Ok(())
            }
            InputSpec::CustomObj { custom_obj_name } => Err(unsupported(
                "the signature",
                format!("takes the object `{custom_obj_name}`: only tensors are taken"),
            )),
            InputSpec::Token {} => Err(unsupported(
                "the signature",
                "has effects (a token): only tensors are taken",
            )),
        }
    }

    fn variable(
        &mut self,
        arg: &Named,
        name: String,
        role: Role,
        graph: &Graph,
        names: &mut Names,
    ) -> Result<()> {
        let number = self.program.variables.len();
        let value = self.value(&arg.name, Origin::Variable(number), graph)?;
        names.add(&arg.name, value)?;
        let meta = graph.tensor_values.get(&arg.name);
        let meta = meta.ok_or_else(|| damaged(place(&name), "has no sizes in the program"))?;
        let form = Form::of(meta, &name)?;
        self.program.variables.push(Variable {
            name,
            role,
            value,
            form,
        });
        Ok(())
    }

    fn value(&mut self, name: &str, origin: Origin, graph: &Graph) -> Result<ValueId> {
        let meta = graph.tensor_values.get(name);
        let number = graph.sym_int_values.get(name);
        // Unknown types are rejected.
        let kind = meta.map(|meta| kind_of(meta, name)).transpose()?;
        let example = |meta: &TensorMeta| meta.sizes.iter().map(SymInt::example).collect();
        self.program.values.push(ValueInfo {
            name: name.to_owned(),
            origin,
            sizes: meta.map(sizes_of),
            example: meta.and_then(example),
            kind,
            symbol: number.and_then(SymInt::symbol).map(Arc::from),
            is_number: false,
        });
        Ok(ValueId(self.program.values.len() - 1))
    }

    fn graph(
        &mut self,
        graph: &Graph,
        names: &mut Names,
        modes: Modes,
        depth: usize,
    ) -> Result<()> {
        for node in &graph.nodes {
            self.node(node, graph, names, modes, depth)?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        node: &schema::Node,
        graph: &Graph,
        names: &mut Names,
        modes: Modes,
        depth: usize,
    ) -> Result<()> {
        let module = module_of(node);
        let name = own_name(node);
        let place = module.place(&name);
        if operators::checks_only(&node.target) {
            return Ok(());
        }
        if let Some(kind) = node.target.strip_prefix("torch.ops.higher_order.") {
            return self.inline(kind, node, &place, names, modes, depth);
        }
        let own_gradient = backward::own_gradient(node, &module).filter(|_| !modes.no_grad);
        let told = &mut self.program.own_gradients;
        told.extend(own_gradient.filter(|own| !told.contains(own)));
        let what = operators::what(&node.target, &place)?;
        let mut given = Vec::new();
        for input in &node.inputs {
            let argument = arguments::read(&input.arg, &input.name, names, &place)?;
            given.push((input.name.clone(), argument));
        }
        let number = self.program.nodes.len();
        let mut outputs = Vec::new();
        for (own, is_number) in arguments::outputs(&node.outputs, &place)? {
            let id = self.value(own, Origin::Node(number), graph)?;
            self.program.values[id.0].is_number = is_number;
            names.add(own, id)?;
            outputs.push(id);
        }
        let numbers = |id: &ValueId| self.program.values[id.0].is_number;
        let computes_numbers = !matches!(what, What::Operator { .. } | What::GroupedMm);
        if outputs.iter().any(|id| numbers(id) != computes_numbers) {
            return Err(unsupported(
                place,
                format!(
                    "`{}` makes a number of what is in a tensor: what a model does may depend on \
                     shapes, not on values",
                    node.target
                ),
            ));
        }
        self.program.nodes.push(Node {
            name,
            what,
            arguments: given,
            outputs,
            module,
            modes,
        });
        Ok(())
    }

    /// Inlines the nodes of a subgraph in place of the node that runs it.
    fn inline(
        &mut self,
        kind: &str,
        node: &schema::Node,
        place: &str,
        names: &mut Names,
        modes: Modes,
        depth: usize,
    ) -> Result<()> {
        if depth == MAX_DEPTH {
            return Err(damaged(place, "subgraphs lie in each other too deeply"));
        }
        let at = node
            .inputs
            .iter()
            .position(|own| own.arg.get("as_graph").is_some());
        let modes = arguments::modes(kind, node, modes, place)?;
        let at = at.ok_or_else(|| damaged(place, "has no subgraph"))?;
        let graph = Graph::deserialize(&node.inputs[at].arg["as_graph"]["graph"]);
        let graph = graph.map_err(|error| damaged(place, format!("its subgraph: {error}")))?;
        let given = &node.inputs[at + 1..];
        if given.len() != graph.inputs.len() {
            return Err(damaged(
                place,
                "gives its subgraph another number of inputs than it has",
            ));
        }
        let mut inner = Names::default();
        for (given, input) in given.iter().zip(&graph.inputs) {
            let argument = arguments::read(&given.arg, &given.name, names, place)?;
            let (Argument::Value(value), Some(name)) = (argument, arguments::name_of(input)) else {
                return Err(unsupported(place, "gives its subgraph what is no tensor"));
            };
            inner.add(name, value)?;
        }
        self.graph(&graph, &mut inner, modes, depth + 1)?;
        let outer = arguments::outputs(&node.outputs, place)?;
        if outer.len() != graph.outputs.len() {
            return Err(damaged(
                place,
                "takes another number of outputs than its subgraph has",
            ));
        }
        for ((own, _), output) in outer.into_iter().zip(&graph.outputs) {
            let Some(name) = arguments::name_of(output) else {
                return Err(unsupported(
                    place,
                    "has a subgraph that returns what is no tensor",
                ));
            };
            names.add(own, inner.get(name, place)?)?;
        }
        Ok(())
    }
}

fn output(spec: &Value, names: &Names) -> Result<ValueId> {
    let only = |spec: &Value| Some(spec.as_object()?.iter().next()?.0.clone());
    let kind = only(spec).unwrap_or_default();
    let arg = spec.get("user_output").map(|own| &own["arg"]);
    let arg = arg.or_else(|| spec.get("loss_output").map(|own| &own["arg"]));
    let Some(arg) = arg else {
        return Err(unsupported(
            "the signature",
            format!("has an output of the kind `{kind}`, which is not known"),
        ));
    };
    let name = tensor_name(arg).or_else(|| arg["name"].as_str());
    let name = name.ok_or_else(|| {
        unsupported(
            "the signature",
            format!("has an output that is no tensor ({arg}): return tensors only"),
        )
    })?;
    names.get(name, "the signature")
}

fn tensor_name(arg: &Value) -> Option<&str> {
    arg["as_tensor"]["name"].as_str()
}

fn sizes_of(meta: &TensorMeta) -> Vec<Size> {
    let sizes = meta.sizes.iter();
    sizes
        .map(|size| match (size, size.symbol()) {
            (SymInt::AsInt(fixed), _) => Size::Fixed(*fixed),
            (_, Some(symbol)) => Size::Symbol(symbol.into()),
            (SymInt::AsExpr(own), _) => Size::Computed(own.expr_str.as_str().into()),
        })
        .collect()
}

fn own_name(node: &schema::Node) -> String {
    node.name.clone().unwrap_or_else(|| node.target.clone())
}

/// Parses `nn_module_stack`: `key,path,class` for every module from outermost to innermost, separated
/// by `;`. A submodule that computes a module's weight (`parametrizations.weight.0`) counts as that
/// module.
fn module_of(node: &schema::Node) -> Module {
    let text = node.metadata.get("nn_module_stack");
    let text = text.map_or("", String::as_str);
    let one = |entry: &str| {
        let (_, rest) = entry.split_once(',')?;
        let (path, class) = rest.split_once(',')?;
        let made_later = path.starts_with("_empty_nn_module_stack");
        let of_a_weight = path.split('.').any(|own| own == "parametrizations");
        (!made_later && !of_a_weight).then(|| (path.to_owned(), class.to_owned()))
    };
    Module {
        stack: text.split(';').filter_map(one).collect(),
    }
}
