//! A model description in a file, as `models NAME --json` prints it.

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::{Failure, input};
use gpipe_decide::find_run;
use gpipe_models::hugging_face::hub_hint;

/// Extensions of data files.
const DATA: [&str; 5] = ["npz", "npy", "csv", "tsv", "parquet"];

/// Only name and settings are used; the other fields are informative.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "fields that are known but not needed")]
struct Description {
    name: String,
    #[serde(default)]
    settings: Map<String, Value>,
    parameters: Option<IgnoredAny>,
    bytes: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    inputs: Option<IgnoredAny>,
    targets: Option<IgnoredAny>,
    about: Option<IgnoredAny>,
    source: Option<IgnoredAny>,
    sizes: Option<IgnoredAny>,
    presets: Option<IgnoredAny>,
}

/// Reads the name, and a `key=value` for each size.
pub(super) fn read(path: &Path) -> Result<(String, Vec<String>), Failure> {
    if let (false, Some(hint)) = (path.exists(), hub_hint(path)) {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "--model {path}: there is no such file; {hint}"
        )));
    }
    if path.is_dir() {
        let what = if find_run::is_run(path) {
            "this is the folder of a run: --resume goes on with it, and `export --run` writes its weights for \
             --weights"
        } else if path.join("config.json").is_file() {
            "this is the folder of a model's weights: give it as --weights, and the model's name as --model"
        } else {
            "this is a folder: one of data is given as --data, one of weights as --weights"
        };
        return Err(Failure::Usage(format!(
            "--model {}: {what}",
            path.display()
        )));
    }
    if path.extension().is_some_and(|end| end == "py") {
        return Err(Failure::Usage(format!(
            "--model {}: this is Python: export the model that it makes, with torch.export.export and \
             torch.export.save, and give that file",
            path.display()
        )));
    }
    if let Some(end) = path
        .extension()
        .filter(|own| DATA.iter().any(|data| data == own))
    {
        return Err(Failure::Usage(format!(
            "--model {}: a .{} is data: give it as --data, and a model's name as --model",
            path.display(),
            end.display()
        )));
    }
    let text = input::text(path).map_err(|failure| prefixed("--model", failure))?;
    parse(&text).map_err(|why| Failure::Usage(format!("--model {}: {why}", path.display())))
}

fn prefixed(flag: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Usage(why) => Failure::Usage(format!("{flag} {why}")),
        failed @ (Failure::Run(_) | Failure::Exit(..) | Failure::Asked(_)) => failed,
    }
}

fn parse(text: &str) -> Result<(String, Vec<String>), String> {
    let description: Description = serde_json::from_str(text).map_err(|error| {
        format!("is no model description, as `models NAME --json` prints it: {error}")
    })?;
    let setting = |(key, value): (String, Value)| match value {
        Value::Number(number) => Ok(format!("{key}={number}")),
        other => Err(format!("settings: `{key}` is {other}, not a number")),
    };
    let settings = description.settings.into_iter().map(setting);
    Ok((description.name, settings.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_a_name_and_settings() {
        let (name, settings) = parse(r#"{"name": "gpt", "layers": 4}"#).unwrap();
        assert_eq!((name.as_str(), settings.len()), ("gpt", 0));
        let text = r#"{"name": "gpt", "settings": {"layers": 2, "dropout": 0.1}}"#;
        let (_, mut settings) = parse(text).unwrap();
        settings.sort();
        assert_eq!(settings, ["dropout=0.1", "layers=2"]);
    }

    #[test]
    fn what_is_no_description_is_told_apart_from_one() {
        for (text, wanted) in [
            ("[1]", "is no model description"),
            ("the whale", "is no model description"),
            (r#"{"settings": {}}"#, "missing field `name`"),
            (
                r#"{"name": "gpt", "setings": {}}"#,
                "unknown field `setings`",
            ),
            (r#"{"models": []}"#, "unknown field `models`"),
            (
                r#"{"name": "gpt", "settings": {"layers": "2"}}"#,
                "`layers` is \"2\", not a number",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
