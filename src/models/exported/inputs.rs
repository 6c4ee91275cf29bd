//! Checks that a model's inputs match its export.

use std::collections::HashMap;

use tch::Kind;

use super::program::{Program, Size};
use super::schema::Range;
use crate::loss_kind::is_float;
use gpipe_torch::Values;

/// Shapes of the user's inputs.
#[derive(Debug, Clone)]
pub(super) struct Check {
    inputs: Vec<Input>,
    ranges: HashMap<String, Range>,
}

/// Name, sizes and element type, as far as in the file.
#[derive(Debug, Clone)]
struct Input {
    name: String,
    sizes: Option<Vec<Size>>,
    kind: Option<Kind>,
}

impl Check {
    pub(super) fn of(program: &Program) -> Self {
        let inputs = program.inputs.iter().map(|id| {
            let info = &program.values[id.0];
            Input {
                name: info.name.clone(),
                sizes: info.sizes.clone(),
                kind: info.kind,
            }
        });
        Self {
            inputs: inputs.collect(),
            ranges: program.ranges.clone(),
        }
    }

    /// # Errors
    /// An input has another shape than the program was exported for.
    pub(super) fn check(&self, values: &Values) -> anyhow::Result<()> {
        let mut known: HashMap<&str, i64> = HashMap::new();
        for (input, value) in self.inputs.iter().zip(values.iter()) {
            let name = &input.name;
            let Some(value) = value else {
                anyhow::bail!("the input `{name}` is absent");
            };
            let own = value.kind();
            // PyTorch accepts most types of the same sort, and stages may compute in half precision.
            let other = input.kind.filter(|kind| is_float(*kind) != is_float(own));
            if let Some(kind) = other {
                anyhow::bail!(
                    "the input `{name}` has elements of kind {own:?}, but the model was exported for \
                     {kind:?}"
                );
            }
            let Some(wanted) = &input.sizes else {
                continue;
            };
            let shape = value.size();
            let shown = || shown(wanted);
            anyhow::ensure!(
                shape.len() == wanted.len(),
                "the input `{name}` has shape {shape:?}, but the model was exported for {}",
                shown()
            );
            for (at, (size, wanted)) in shape.iter().zip(wanted).enumerate() {
                match wanted {
                    Size::Fixed(wanted) => anyhow::ensure!(
                        size == wanted,
                        "the input `{name}` has shape {shape:?}, but the model was exported for \
                         {}: {}",
                        shown(),
                        advice(at)
                    ),
                    Size::Symbol(symbol) => {
                        let other = *known.entry(symbol).or_insert(*size);
                        anyhow::ensure!(
                            other == *size,
                            "the input `{name}` has shape {shape:?}, but the model was exported \
                             for {}, and {symbol} is {other} already",
                            shown()
                        );
                        self.within(name, &shape, symbol, *size)?;
                    }
                    Size::Computed(_) => {}
                }
            }
        }
        Ok(())
    }

    fn within(&self, name: &str, shape: &[i64], symbol: &str, size: i64) -> anyhow::Result<()> {
        let Some(range) = self.ranges.get(symbol) else {
            return Ok(());
        };
        let (min, max) = (
            range.min_val.unwrap_or(0),
            range.max_val.unwrap_or(i64::MAX),
        );
        let shown = match max {
            i64::MAX => format!("{min} or more"),
            _ => format!("{min} to {max}"),
        };
        anyhow::ensure!(
            (min..=max).contains(&size),
            "the input `{name}` has shape {shape:?}, but the model was exported for {symbol} of \
             {shown}: say so in `Dim(…, min=…, max=…)`, or choose other micro-batches"
        );
        Ok(())
    }
}

fn advice(dimension: usize) -> &'static str {
    if dimension == 0 {
        "export it with `dynamic_shapes`, whose dimension 0 is `Dim(\"batch\")`, or make \
         micro-batches of that size"
    } else {
        "export it with `dynamic_shapes` if that size may differ"
    }
}

fn shown(sizes: &[Size]) -> String {
    let one = |size: &Size| match size {
        Size::Fixed(fixed) => fixed.to_string(),
        Size::Symbol(symbol) => symbol.to_string(),
        Size::Computed(_) => "?".to_owned(),
    };
    let all: Vec<_> = sizes.iter().map(one).collect();
    format!("[{}]", all.join(", "))
}
