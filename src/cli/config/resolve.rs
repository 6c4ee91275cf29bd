//! Merges layers into a configuration.

use std::collections::BTreeMap;

use super::{ConfigLayer, Entry, Key, Origin, Schema};

/// The origin of each given key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins {
    given: BTreeMap<String, (usize, Origin)>,
    /// Notes about values that a higher layer made invalid, with reasons.
    pub(crate) notes: Vec<String>,
}

impl Origins {
    /// Returns the origin of the key's value, or `None` for a default.
    pub(crate) fn of(&self, key: &str) -> Option<&Origin> {
        self.given.get(key).map(|(_, origin)| origin)
    }

    /// Returns the index of the layer that the key's value comes from, counted from the lowest.
    pub(crate) fn layer(&self, key: &str) -> Option<usize> {
        self.given.get(key).map(|(layer, _)| *layer)
    }
}

/// Applies layers to `defaults`, lowest first.
///
/// # Errors
/// A layer has an unknown key or an invalid value; the error says where, why, and what is valid.
pub(crate) fn resolve<T: Clone + 'static>(
    schema: &Schema<T>,
    defaults: T,
    layers: &[ConfigLayer<T>],
) -> Result<(T, Origins), String> {
    let (mut value, mut origins) = (defaults, Origins::default());
    for (number, layer) in layers.iter().enumerate() {
        let before = value.clone();
        let below = origins.clone();
        for entry in layer {
            let Some(key) = schema.key(entry)? else {
                continue;
            };
            apply(key, entry, &mut value)?;
            let origin = (number, entry.origin.clone());
            origins.given.insert(key.name.clone(), origin);
        }
        // In order: resetting one key may affect the next.
        for key in &schema.keys {
            let from_below = origins.layer(&key.name).is_some_and(|own| own < number);
            let Some(beside) = key.beside.as_ref().filter(|_| from_below) else {
                continue;
            };
            let same = |name: &&str| {
                let key = schema.get(name);
                key.is_none_or(|key| (key.get)(&before) == (key.get)(&value))
            };
            let chosen_for = beside.keys.iter().any(|key| below.of(key).is_some());
            let keeps = match &beside.keep {
                Some(keep) => keep(&before, &value),
                None => beside.keys.iter().all(same),
            };
            if chosen_for && !keeps {
                let changed = changed(schema, key, &before, &value);
                origins.forget(key, &before, &changed);
                beside.reset.to(&mut value);
            }
        }
    }
    Ok((value, origins))
}

fn apply<T: 'static>(key: &Key<T>, entry: &Entry<T>, value: &mut T) -> Result<(), String> {
    let wrong = |why: String| {
        let (name, given) = (&key.name, &entry.value);
        match &entry.origin {
            origin @ (Origin::Flag(_) | Origin::Set(_)) => format!("{origin}: {why}"),
            origin => format!("{origin}: {name} = {given}: {why}"),
        }
    };
    let read = |text: String| (key.parse)(&text);
    let assign = match &entry.read {
        Some(assign) => assign.clone(),
        None => entry.value.spelt(key.kind).and_then(read).map_err(wrong)?,
    };
    assign.to(value);
    Ok(())
}

/// Names the keys changed by a layer that a value was chosen for.
fn changed<T: 'static>(schema: &Schema<T>, key: &Key<T>, before: &T, after: &T) -> String {
    let beside = key.beside.iter().flat_map(|beside| &beside.keys);
    let keys = beside.filter_map(|key| schema.get(key));
    let values = keys.filter_map(|key| {
        let (old, new) = ((key.get)(before), (key.get)(after));
        (old != new).then(|| Some(format!("{} = {}", key.name, old?)))?
    });
    values.collect::<Vec<_>>().join(" and ")
}

impl Origins {
    fn forget<T: 'static>(&mut self, key: &Key<T>, before: &T, changed: &str) {
        let Some((_, origin)) = self.given.remove(&key.name) else {
            return;
        };
        if let Some(value) = (key.get)(before) {
            let were = if changed.is_empty() {
                "what was said of the model".to_owned()
            } else {
                changed.to_owned()
            };
            self.notes.push(format!(
                "{} = {value} ({origin}) went with {were}, and is chosen anew",
                key.name
            ));
        }
    }
}
