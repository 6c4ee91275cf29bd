//! Skip connections: a value that one layer stashes and a later layer pops.
//!
//! A stash is a snapshot: later in-place changes of the tensor do not reach the popped value, under
//! any partition. Each pop has its own accumulation node, so that the returning gradients are
//! always added in the same order, from the last popping layer to the first.

use std::cell::RefCell;
use std::collections::HashMap;

use tch::Tensor;

use super::ffi;

/// One stashed value and one layer that pops it.
#[doc(alias = "portal")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The value's name.
    pub(crate) name: String,
    /// The layer that stashes it.
    pub(crate) from: usize,
    /// The layer that pops it.
    pub(crate) to: usize,
}

/// The names that a layer declared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declared {
    pub(crate) stashes: Vec<String>,
    pub(crate) pops: Vec<String>,
}

/// The values that one layer can pop in a pass, and those that it has stashed.
#[derive(Debug, Default)]
pub(crate) struct SkipBox {
    declared: Declared,
    /// Whether stashed values are copied at once, as something writes to them later.
    copies: bool,
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<String, Option<Tensor>>,
    stashed: Vec<Stashed>,
}

/// A value that a layer stashed.
#[derive(Debug)]
pub(crate) struct Stashed {
    pub(crate) name: String,
    pub(crate) value: Option<Tensor>,
    /// The version of its memory by then.
    pub(crate) changes: i64,
}

impl SkipBox {
    /// For a layer that declared these names and finds these values.
    pub(crate) fn new(
        declared: &Declared,
        waiting: HashMap<String, Option<Tensor>>,
        copies: bool,
    ) -> Self {
        Self {
            declared: declared.clone(),
            copies,
            inner: RefCell::new(Inner {
                waiting,
                stashed: Vec::new(),
            }),
        }
    }

    pub(crate) fn stash(&self, name: &str, value: Option<&Tensor>) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.declared.stashes.iter().any(|own| own == name),
            "the layer stashes `{name}`, which the model does not declare: add `.stashes(\"{name}\")` after it"
        );
        let stashed = &mut self.inner.borrow_mut().stashed;
        anyhow::ensure!(
            stashed.iter().all(|own| own.name != name),
            "the layer stashes `{name}` twice"
        );
        let value = value.map(|value| {
            if self.copies {
                ffi::copy(value)
            } else {
                Ok(value.shallow_clone())
            }
        });
        let value = value.transpose()?;
        stashed.push(Stashed {
            name: name.to_owned(),
            changes: value.as_ref().map_or(Ok(0), ffi::changes)?,
            value,
        });
        Ok(())
    }

    pub(crate) fn pop(&self, name: &str) -> anyhow::Result<Option<Tensor>> {
        anyhow::ensure!(
            self.declared.pops.iter().any(|own| own == name),
            "the layer pops `{name}`, which the model does not declare: add `.pops(\"{name}\")` after it"
        );
        let popped = self.inner.borrow_mut().waiting.remove(name);
        popped.ok_or_else(|| anyhow::anyhow!("the layer pops `{name}` twice"))
    }

    /// The stashed values.
    pub(crate) fn finish(self) -> anyhow::Result<Vec<Stashed>> {
        let stashed = self.inner.into_inner().stashed;
        for name in &self.declared.stashes {
            anyhow::ensure!(
                stashed.iter().any(|own| own.name == *name),
                "the layer declares that it stashes `{name}`, but did not"
            );
        }
        Ok(stashed)
    }
}

/// Connects stashes to pops, from the declarations of all layers, the last popping layer first.
///
/// # Errors
/// A stash that no layer pops, a pop before or without its stash, a name that is stashed or
/// popped twice.
pub(crate) fn connect<'a>(
    layers: impl Iterator<Item = (&'a str, &'a Declared)>,
) -> Result<Vec<Skip>, String> {
    let layers: Vec<_> = layers.collect();
    let mut origins: HashMap<&str, usize> = HashMap::new();
    for (number, (layer, declared)) in layers.iter().enumerate() {
        for name in &declared.stashes {
            if let Some(first) = origins.insert(name, number) {
                return Err(format!(
                    "layers `{}` and `{layer}` both stash `{name}`: names of skips must be unique",
                    layers[first].0
                ));
            }
        }
    }
    let mut skips = Vec::new();
    for (number, (layer, declared)) in layers.iter().enumerate() {
        for (place, name) in declared.pops.iter().enumerate() {
            if declared.pops[..place].contains(name) {
                return Err(format!("layer `{layer}` pops `{name}` twice"));
            }
            match origins.get(name.as_str()) {
                None => {
                    return Err(format!(
                        "layer `{layer}` pops `{name}`, which no layer stashes"
                    ));
                }
                Some(&from) if from >= number => {
                    return Err(format!(
                        "layer `{layer}` pops `{name}` before layer `{}` stashes it",
                        layers[from].0
                    ));
                }
                Some(&from) => skips.push(Skip {
                    name: name.clone(),
                    from,
                    to: number,
                }),
            }
        }
    }
    let mut unused: Vec<_> = origins
        .into_iter()
        .filter(|(name, _)| skips.iter().all(|skip| skip.name != **name))
        .collect();
    unused.sort_by_key(|(_, layer)| *layer);
    // The gradients of several pops are added in this order, wherever they come from.
    skips.sort_by_key(|skip| std::cmp::Reverse(skip.to));
    match unused.first() {
        None => Ok(skips),
        Some((name, layer)) => Err(format!(
            "layer `{}` stashes `{name}`, which no layer pops",
            layers[*layer].0
        )),
    }
}
