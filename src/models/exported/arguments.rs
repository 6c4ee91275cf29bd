//! Arguments and outputs of nodes.

use std::collections::HashMap;

use serde_json::Value;
use tch::Kind;

use super::error::{ExportedReason, Result, damaged, unsupported};
use super::form::{kind, number_in_libtorch};
use super::program::{Argument, Modes, ValueId};
use super::schema;

/// The names defined so far, each once.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, ValueId>);

impl Names {
    pub(super) fn add(&mut self, name: &str, value: ValueId) -> Result<()> {
        if self.0.insert(name.to_owned(), value).is_some() {
            return Err(damaged("the graph", format!("defines `{name}` twice")));
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str, place: &str) -> Result<ValueId> {
        let value = self.0.get(name).copied();
        value.ok_or_else(|| {
            damaged(
                place,
                format!("takes `{name}`, which nothing before it makes"),
            )
        })
    }
}

/// Reads an argument: an object whose single key is its type.
pub(super) fn read(arg: &Value, name: &str, names: &Names, place: &str) -> Result<Argument> {
    let only = arg.as_object().filter(|own| own.len() == 1);
    let only = only.and_then(|own| own.iter().next());
    let Some((kind, value)) = only else {
        return Err(damaged(place, format!("the argument `{name}` has no kind")));
    };
    let value_of = |own: &Value| names.get(own.as_str().unwrap_or_default(), place);
    let argument = match kind.as_str() {
        "as_none" => Some(Argument::None),
        "as_tensor" => Some(Argument::Value(value_of(&value["name"])?)),
        "as_tensors" => {
            let all = each(value, |own| Some(value_of(&own["name"]).map(Some)));
            all.map(collected).transpose()?.map(Argument::Values)
        }
        "as_optional_tensors" => {
            let all = each(value, |own| Some(optional(own, names, place)));
            all.map(collected).transpose()?.map(Argument::Values)
        }
        "as_optional_tensor" => {
            let own = optional(value, names, place)?;
            Some(own.map_or(Argument::None, Argument::Value))
        }
        "as_int" => value.as_i64().map(Argument::Int),
        "as_float" => float(value).map(Argument::Float),
        "as_bool" => value.as_bool().map(Argument::Bool),
        "as_string" => value.as_str().map(|own| Argument::Text(own.to_owned())),
        "as_ints" => each(value, Value::as_i64).map(Argument::Ints),
        "as_floats" => each(value, float).map(Argument::Floats),
        "as_bools" => each(value, Value::as_bool).map(Argument::Bools),
        "as_sym_int" => number(value, "as_int", names, place)?
            .map(|own| own.map_or_else(Argument::Value, Argument::Int)),
        "as_sym_float" => match value.get("as_float") {
            Some(own) => float(own).map(Argument::Float),
            None => Some(Argument::Value(value_of(&value["as_name"])?)),
        },
        "as_sym_bool" => match value.get("as_bool") {
            Some(own) => own.as_bool().map(Argument::Bool),
            None => Some(Argument::Value(value_of(&value["as_name"])?)),
        },
        "as_sym_ints" => {
            let all = each(value, |own| number(own, "as_int", names, place).transpose());
            all.map(collected).transpose()?.map(Argument::Sizes)
        }
        "as_scalar_type" => Some(scalar_type(value, name, place)?),
        "as_memory_format" => memory_format(value),
        // The strided layout, by libtorch's number.
        "as_layout" => (value.as_u64() == Some(7)).then_some(Argument::Int(0)),
        "as_device" => device(value),
        other => {
            return Err(unsupported(
                place,
                format!("the argument `{name}` is of the kind `{other}`, which is not known"),
            ));
        }
    };
    argument.ok_or_else(|| {
        let value = value.to_string();
        let shown: String = value.chars().take(80).collect();
        unsupported(
            place,
            format!("the argument `{name}`, {kind} {shown}, is not known"),
        )
    })
}

fn each<T>(value: &Value, one: impl FnMut(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(one).collect()
}

fn collected<T>(all: Vec<Result<T>>) -> Result<Vec<T>> {
    all.into_iter().collect()
}

fn optional(own: &Value, names: &Names, place: &str) -> Result<Option<ValueId>> {
    match own["as_tensor"]["name"].as_str() {
        Some(name) => names.get(name, place).map(Some),
        None => Ok(None),
    }
}

/// Returns a constant number or the value of a number; `None` if it is neither.
fn number(
    own: &Value,
    fixed: &str,
    names: &Names,
    place: &str,
) -> Result<Option<std::result::Result<i64, ValueId>>> {
    if let Some(fixed) = own.get(fixed) {
        return Ok(fixed.as_i64().map(Ok));
    }
    match own["as_name"].as_str() {
        Some(name) => names.get(name, place).map(|value| Some(Err(value))),
        None => Ok(None),
    }
}

/// JSON has no infinities: Python writes them as strings, or as words that are not valid JSON.
fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some("NaN") => Some(f64::NAN),
        _ => value.as_f64(),
    }
}

fn scalar_type(value: &Value, name: &str, place: &str) -> Result<Argument> {
    let number = value.as_u64().and_then(number_in_libtorch);
    let what = || format!("the argument `{name}` is the type {value}, which is not known");
    let number = number.ok_or_else(|| unsupported(place, what()))?;
    Ok(Argument::Int(number))
}

fn memory_format(value: &Value) -> Option<Argument> {
    // Maps the numbers in PyTorch's files to libtorch's.
    let format = match value.as_u64()? {
        1 => 0,
        2 => 2,
        3 => 3,
        4 => 1,
        _ => return None,
    };
    Some(Argument::Int(format))
}

fn device(value: &Value) -> Option<Argument> {
    let known = ["cpu", "cuda"].contains(&value["type"].as_str()?);
    known.then_some(Argument::Device)
}

/// Returns the name of a graph's input or output that is a tensor or a size.
pub(super) fn name_of(own: &Value) -> Option<&str> {
    let name = own["as_tensor"]["name"].as_str();
    name.or_else(|| own["as_sym_int"]["as_name"].as_str())
}

/// Returns the names that a node defines, and whether they are numbers.
pub(super) fn outputs<'a>(outputs: &'a [Value], place: &str) -> Result<Vec<(&'a str, bool)>> {
    let unknown = |own: &Value| -> ExportedReason {
        unsupported(place, format!("has an output that is not known: {own}"))
    };
    let mut all = Vec::new();
    for own in outputs {
        if let Some(name) = own["as_tensor"]["name"].as_str() {
            all.push((name, false));
        } else if let Some(list) = own["as_tensors"].as_array() {
            for own in list {
                all.push((own["name"].as_str().ok_or_else(|| unknown(own))?, false));
            }
        } else if own.get("as_none").is_none() {
            let number = ["as_sym_int", "as_sym_float", "as_sym_bool"];
            let name = number.iter().find_map(|kind| own[kind]["as_name"].as_str());
            all.push((name.ok_or_else(|| unknown(own))?, true));
        }
    }
    Ok(all)
}

/// Returns the modes that a node sets for its subgraph.
pub(super) fn modes(hop: &str, node: &schema::Node, modes: Modes, place: &str) -> Result<Modes> {
    let given = |at: usize, kind: &str| node.inputs.get(at).map(|own| &own.arg[kind]);
    let flag = |at: usize| given(at, "as_bool").and_then(Value::as_bool);
    match hop {
        "wrap_with_set_grad_enabled" => Ok(Modes {
            no_grad: flag(0) != Some(true),
            ..modes
        }),
        "wrap_with_autocast" => {
            let to = given(1, "as_scalar_type").and_then(Value::as_u64);
            let to = to.and_then(kind);
            Ok(Modes {
                autocast: Some(to.filter(|_| flag(2) == Some(true)).unwrap_or(Kind::Float)),
                ..modes
            })
        }
        other => Err(unsupported(
            place,
            format!(
                "the higher-order operator `{other}` is not known: what a model does may depend \
                 on shapes, not on values"
            ),
        )),
    }
}
