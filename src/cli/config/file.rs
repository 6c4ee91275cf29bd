//! The layer of a TOML file.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigLayer, Entry, Origin, Value};

/// Reads a file's keys with their lines.
///
/// # Errors
/// The file cannot be read or is not TOML; the error gives file, line and reason.
pub(crate) fn file<T>(path: &Path, text: &str) -> Result<ConfigLayer<T>, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let origin = origin(path, text, at);
        let message = error.message().trim_end().replace('\n', "; ");
        format!("{origin}: is no TOML: {message}")
    })?;
    let mut layer = ConfigLayer::new();
    let place = Place { path, text };
    place.flatten("", table.get_ref(), &mut layer);
    Ok(layer)
}

struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    /// Adds the keys of a table, or the table itself if it has none.
    fn flatten<T>(&self, above: &str, table: &DeTable<'_>, layer: &mut ConfigLayer<T>) {
        // The parser sorts by name; restore the order of the file.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let dot = if above.is_empty() { "" } else { "." };
            let name = format!("{above}{dot}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) if !inner.is_empty() => self.flatten(&name, inner, layer),
                value => layer.push(Entry {
                    key: name,
                    value: Value::of_toml(value),
                    origin: self.origin_of(key),
                    read: None,
                }),
            }
        }
    }

    fn origin_of<K>(&self, key: &Spanned<K>) -> Origin {
        origin(self.path, self.text, key.span().start)
    }
}

fn origin(path: &Path, text: &str, at: usize) -> Origin {
    let before = text.get(..at).unwrap_or(text);
    Origin::File {
        path: path.to_owned(),
        line: 1 + before.matches('\n').count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_with_their_lines_in_every_way_of_writing_them() {
        let text = "a.b = 1\n\n[train]\n# how long\nsteps = 5\nsub = { x = 2 }\n[empty]\n";
        let layer = file::<()>(Path::new("run.toml"), text).unwrap();
        let seen: Vec<String> = layer
            .iter()
            .map(|entry| format!("{} {} = {}", entry.origin, entry.key, entry.value))
            .collect();
        let wanted = [
            "run.toml:1 a.b = 1",
            "run.toml:5 train.steps = 5",
            "run.toml:6 train.sub.x = 2",
            "run.toml:7 empty = a table",
        ];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        for text in ["[train]\nsteps = \n", "[train]\nsteps\n", "x = 1\nx = 2\n"] {
            let error = file::<()>(Path::new("run.toml"), text).unwrap_err();
            assert!(error.starts_with("run.toml:2: is no TOML: "), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
