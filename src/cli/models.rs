//! `gpipe-rs models`: lists the models and their sizes.

use std::fmt::Write as _;
use std::path::Path;

use gpipe_partitioner::Bytes;
use gpipe_partitioner::words::count;
use serde_json::{Map, Value, json};
use tch::Kind;

use super::model::exported::{self, AskedLoss};
use super::model::flags::Given;
use super::output::thousands;
use super::table::{Align, Table};
use super::{Failure, output};
use gpipe_models::LossKind;
use gpipe_models::zoo::{ModelSpec, Settings, Size, Synthetic, Zoo, ZooError};
use gpipe_torch::Variable;

/// Arguments of `gpipe-rs models`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs models
  gpipe-rs models gpt2-xl
  gpipe-rs models amoebanet-d layers=36 filters=544 --json")]
pub(super) struct Args {
    /// One model by its name, instead of all; or a .pt2 that PyTorch exported.
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    /// Sizes other than the defaults, such as layers=36.
    #[arg(value_name = "SIZE=VALUE")]
    settings: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    let text = match &args.name {
        Some(name) => {
            let spec = spec(name, &args.settings, zoo).map_err(Failure::Usage)?;
            if args.json {
                output::json(&spec_as_json(&spec)?)
            } else {
                one(zoo, &spec)?
            }
        }
        None if args.json => output::json(&json!({"models": all_as_json(zoo)?})),
        None => all(zoo)?,
    };
    output::write(None, &text)
}

/// Returns the model of this name, or in this file.
fn spec(name: &str, settings: &[String], zoo: &Zoo) -> Result<ModelSpec, String> {
    if zoo.names().any(|own| own == name) || !exported::is_exported(name) {
        return zoo.spec(name, settings).map_err(|error| error.to_string());
    }
    if let Some(setting) = settings.first() {
        return Err(format!(
            "`{setting}`: the sizes of `{name}` are in the file, as PyTorch exported it"
        ));
    }
    exported::read(Path::new(name), AskedLoss::default(), &Given::new())
}

/// Returns every entry with its presets; the entry's own name has the default sizes.
fn specs(zoo: &Zoo) -> Result<Vec<Vec<ModelSpec>>, ZooError> {
    let of_entry = |names: Vec<&str>| {
        let specs = names.into_iter().map(|name| zoo.spec(name, [""; 0]));
        specs.collect()
    };
    zoo.entries()
        .map(|entry| {
            let presets = entry.presets().iter().map(|preset| preset.name());
            of_entry(std::iter::once(entry.name()).chain(presets).collect())
        })
        .collect()
}

fn all(zoo: &Zoo) -> Result<String, Failure> {
    let (name, number) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("model", name),
        ("parameters", number),
        ("layers", number),
        ("input", name),
    ]);
    let mut notes = String::new();
    for specs in specs(zoo)? {
        for spec in &specs {
            table.row([
                spec.name().to_owned(),
                thousands(spec.parameters()?),
                spec.build().len().to_string(),
                shapes(spec.inputs()),
            ]);
        }
        let Some(spec) = specs.first() else { continue };
        let entry = spec.entry();
        // Writing to a String cannot fail.
        let _ = write!(
            notes,
            "\n{}: {}\n  {}\n  {}\n",
            entry.name(),
            entry.description(),
            entry.origin(),
            spec.settings()
        );
    }
    let width = output::width(None);
    let notes = output::wrapped(&notes, width);
    let how = "models NAME says what its sizes are; `train --model NAME --layers 4` chooses one";
    Ok(table.render() + &notes + "\n\n" + &output::wrapped(how, width) + "\n")
}

fn one(zoo: &Zoo, spec: &ModelSpec) -> Result<String, Failure> {
    let entry = spec.entry();
    let model = spec.build();
    let bytes: u64 = (model.distinct_variables()?.iter())
        .map(Variable::bytes)
        .sum();
    let origin = match spec.exported() {
        Some(_) => format!(" ({})", entry.origin()),
        None => format!("\n{}", entry.origin()),
    };
    let mut text = format!(
        "{}: {}{origin}\n\n{} parameters in {} to cut; {} with buffers\ninput   {}\ntarget  {}\n\n",
        spec.name(),
        entry.description(),
        thousands(spec.parameters()?),
        count(model.len(), "layer"),
        Bytes(bytes),
        inputs(spec),
        targets(spec),
    );
    if let Some(file) = spec.exported() {
        let names: Vec<&str> = model.names().collect();
        let layers = output::wrapped(&format!("layers  {}", names.join(" ")), output::width(None));
        let _ = write!(text, "{layers}\n\nchecksum {}\n", file.fingerprint());
        if let Some(note) = exported::note_of_gradients(spec) {
            let _ = write!(text, "\n{}\n", output::wrapped(&note, output::width(None)));
        }
        return Ok(text);
    }
    let mut table = Table::new(&[
        ("size", Align::Left),
        ("value", Align::Right),
        ("default", Align::Right),
        ("", Align::Left),
    ]);
    // The defaults are those of the preset.
    let usual = zoo.spec(spec.name(), [""; 0])?;
    for size in entry.sizes() {
        table.row([
            size.name().to_owned(),
            spec.settings().value(size.name()).to_string(),
            usual.settings().value(size.name()).to_string(),
            size.about().to_owned(),
        ]);
    }
    text.push_str(&table.render_within(output::width(None)));
    let _ = write!(text, "\nnext: `gpipe-rs train --model {}", spec.name());
    let sizes = entry.sizes().iter().map(Size::name);
    let changed = sizes.filter(|name| {
        let value = |of: &ModelSpec| of.settings().value(name).to_string();
        value(spec) != value(&usual)
    });
    for name in changed {
        let _ = write!(
            text,
            " --{} {}",
            name.replace('_', "-"),
            spec.settings().value(name)
        );
    }
    text.push_str(" --data PATH`\n");
    Ok(text)
}

fn all_as_json(zoo: &Zoo) -> Result<Vec<Value>, Failure> {
    let mut models = Vec::new();
    for specs in specs(zoo)? {
        let Some((default, presets)) = specs.split_first() else {
            continue;
        };
        let presets = presets.iter().map(facts).collect::<Result<Vec<_>, _>>()?;
        let mut model = facts(default)?;
        describe(&mut model, default);
        model.insert("presets".into(), json!(presets));
        models.push(Value::Object(model));
    }
    Ok(models)
}

fn spec_as_json(spec: &ModelSpec) -> Result<Value, Failure> {
    let mut model = facts(spec)?;
    describe(&mut model, spec);
    Ok(Value::Object(model))
}

/// Facts that depend on the sizes.
fn facts(spec: &ModelSpec) -> Result<Map<String, Value>, Failure> {
    let model = spec.build();
    let bytes: u64 = (model.distinct_variables()?.iter())
        .map(Variable::bytes)
        .sum();
    let mut facts = Map::new();
    facts.insert("name".into(), json!(spec.name()));
    facts.insert(
        "settings".into(),
        settings(spec.settings(), spec.entry().sizes()),
    );
    facts.insert("parameters".into(), json!(spec.parameters()?));
    facts.insert("bytes".into(), json!(bytes));
    facts.insert("layers".into(), json!(model.len()));
    facts.insert("inputs".into(), tensors(spec.inputs()));
    facts.insert("targets".into(), tensors(spec.targets()));
    if let Some(file) = spec.exported() {
        let names: Vec<&str> = model.names().collect();
        facts.insert("names".into(), json!(names));
        let inputs: Vec<&str> = file.input_names().collect();
        facts.insert("input_names".into(), json!(inputs));
        facts.insert("checksum".into(), json!(file.fingerprint()));
    }
    Ok(facts)
}

/// Facts that do not depend on the sizes.
fn describe(facts: &mut Map<String, Value>, spec: &ModelSpec) {
    let entry = spec.entry();
    let sizes = entry.sizes().iter().map(|size| {
        json!({
            "name": size.name(),
            "default": number(size.default_value(), size),
            "about": size.about(),
        })
    });
    facts.insert("about".into(), json!(entry.description()));
    facts.insert("source".into(), json!(entry.origin()));
    facts.insert("sizes".into(), sizes.collect());
}

fn settings(settings: &Settings, sizes: &[Size]) -> Value {
    let value = |size: &Size| {
        let value = number(settings.value(size.name()), size);
        (size.name().to_owned(), value)
    };
    Value::Object(sizes.iter().map(value).collect())
}

/// Counts are integers in JSON.
fn number(value: f64, size: &Size) -> Value {
    if size.is_count() {
        json!(value as i64)
    } else {
        json!(value)
    }
}

fn tensors(all: &[Synthetic]) -> Value {
    all.iter()
        .map(|one| json!({"shape": one.shape(), "kind": kind(one)}))
        .collect()
}

/// `float32 [batch, 3, 224, 224]`
pub(super) fn shapes(all: &[Synthetic]) -> String {
    shapes_of("batch", all)
}

fn shapes_of(batch: &str, all: &[Synthetic]) -> String {
    let shape = |one: &Synthetic| {
        let sides = one.shape().iter().map(i64::to_string);
        let all: Vec<_> = std::iter::once(batch.to_owned()).chain(sides).collect();
        format!("{} [{}]", kind(one), all.join(", "))
    };
    all.iter().map(shape).collect::<Vec<_>>().join(", ")
}

/// Formats a program's inputs by name, `x float32 [batch, 8]`, and other models' by shape.
fn inputs(spec: &ModelSpec) -> String {
    let Some(file) = spec.exported() else {
        return shapes(spec.inputs());
    };
    let fixed = file.micro_batch_size();
    let batch = fixed.map_or_else(|| "batch".to_owned(), |size| size.to_string());
    let named = file.input_names().zip(spec.inputs());
    let one = |one| shapes_of(&batch, std::slice::from_ref(one));
    let named = named.map(|(name, own)| format!("{name} {}", one(own)));
    let mut all = named.collect::<Vec<_>>().join(", ");
    for (name, dimension, sizes) in file.dynamic() {
        let (least, most) = (sizes.start(), sizes.end());
        let most = if *most == i64::MAX {
            "or more".to_owned()
        } else {
            format!("to {most}")
        };
        // Writing to a String cannot fail.
        let _ = write!(
            all,
            "; dimension {dimension} of {name} may be {least} {most}"
        );
    }
    match fixed {
        Some(size) => {
            let samples = count(size, "sample");
            format!("{all}; exported for micro-batches of {samples}")
        }
        None => all,
    }
}

fn kind(of: &Synthetic) -> &'static str {
    match of.kind() {
        Kind::Int64 => "int64",
        Kind::Int => "int32",
        Kind::Int16 => "int16",
        Kind::Int8 => "int8",
        Kind::Uint8 => "uint8",
        Kind::Bool => "bool",
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        Kind::Double => "float64",
        Kind::ComplexFloat => "complex64",
        Kind::ComplexDouble => "complex128",
        _ => "float32",
    }
}

/// Formats the targets; an exported program's follow from its loss.
fn targets(spec: &ModelSpec) -> String {
    match (shapes(spec.targets()), spec.named_loss()) {
        (shapes, _) if !shapes.is_empty() => shapes,
        (_, Some(_)) => "none: it computes its loss itself, from its inputs".to_owned(),
        (_, None) => {
            let kinds = LossKind::ALL.iter().filter(|own| **own != LossKind::Output);
            let names: Vec<&str> = kinds.map(|own| own.name()).collect();
            format!(
                "none: it computes no loss; `train` needs --loss, which judges its first output ({})",
                names.join(", ")
            )
        }
    }
}
