//! Tips below clap's errors: what was meant, and what to write instead.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use gpipe_partitioner::words::{meant, quoted};

use super::headings::first_sentence;
use super::other_tools::{FLAGS, VERBS};
use crate::find_run;

/// Adds a tip to the error: the name here of another tool's flag or verb, or where it goes.
pub fn explained(command: &Command, args: &[OsString], error: clap::Error) -> clap::Error {
    let verb = verb_of(command, args);
    match error.kind() {
        ErrorKind::UnknownArgument => {}
        ErrorKind::ArgumentConflict => return excluded(verb, error),
        ErrorKind::InvalidSubcommand => return unknown_verb(command, error),
        ErrorKind::InvalidValue => return listed(without_value(verb, error)),
        ErrorKind::MissingRequiredArgument => return missing(verb, error),
        _ => return error,
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let unknown = unknown.split('=').next().unwrap_or_default();
    let name = unknown.trim_start_matches('-').replace('_', "-");
    let tip = match verb {
        Some(verb) if verb.get_name() == "launch" && command.find_subcommand(unknown).is_some() => {
            Some(format!(
                "put `--` before the verb: {}",
                with_dashes(args, unknown)
            ))
        }
        Some(verb) if !unknown.starts_with('-') => positional(verb, args, unknown),
        Some(verb) => tip(verb, unknown, &name).or_else(|| of_another(command, &name)),
        None => without_verb(command, args, unknown, &name),
    };
    match tip {
        Some(tip) => with_tip(error, tip),
        None => plain(error, &name),
    }
}

/// Returns the verb of a command line.
fn verb_of<'a>(command: &'a Command, args: &[OsString]) -> Option<&'a Command> {
    let mut texts = args.iter().filter_map(|arg| arg.to_str()).skip(1);
    texts.find_map(|arg| command.find_subcommand(arg))
}

/// Returns the command line with `--` before the verb that `launch` starts.
fn with_dashes(args: &[OsString], verb: &str) -> String {
    let args: Vec<String> = args
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let launch = args.iter().position(|arg| arg == "launch").unwrap_or(0);
    let words = args.iter().enumerate().skip(launch).map(|(at, arg)| {
        let word = quoted(arg);
        let first = at > launch && arg == verb && !args[launch..at].contains(arg);
        if first { format!("-- {word}") } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Adds a tip for missing arguments. For a plan it shows both ways, with and without a profile.
fn missing(verb: Option<&Command>, error: clap::Error) -> clap::Error {
    let lacks = |flag: &str| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(all)) => all.iter().any(|own| own.starts_with(flag)),
        _ => false,
    };
    let verb = verb.map_or("", Command::get_name);
    if verb == "simulate" && lacks("<--schedule") {
        let tip = "name a schedule, such as --schedule 1f1b, or take --compare for all of them";
        return with_tip(error, tip.to_owned());
    }
    if verb == "schedule" && lacks("<FILE>") {
        let tip = "name the file of a schedule; `show`, `check` and `export` also take a built-in one: \
                   --schedule 1f1b --devices 4 --micro 8";
        return with_tip(error, tip.to_owned());
    }
    if lacks("<--run <DIR>") {
        let run = find_run::newest_run();
        let tip = match &run {
            Some(run) => format!("the newest run is {}: --run {}", run.display(), quoted(run)),
            None => "name the folder that `train` wrote, such as --run runs/1".to_owned(),
        };
        return with_tip(error, tip);
    }
    // With a model's shape, only the machine is missing, and clap's error says so.
    if verb != "plan" || !lacks("--profile") {
        return error;
    }
    let tip = "a plan needs a model and a machine: `plan --profile FILE --devices 4` (`profile` writes the \
               file), or without a profile `plan --model-shape llama2-7b --cluster rtx-4090 --nodes 2 --batch 64`";
    with_tip(error, tip.to_owned())
}

/// Adds the purpose of a flag that got no value, if clap lists no values.
fn without_value(verb: Option<&Command>, error: clap::Error) -> clap::Error {
    let listed = matches!(error.get(ContextKind::ValidValue), Some(ContextValue::Strings(all)) if !all.is_empty());
    let flag = text(&error, ContextKind::InvalidArg)
        .filter(|_| text(&error, ContextKind::InvalidValue) == Some("") && !listed);
    match flag.and_then(|flag| purpose(shown_as(verb?, flag)?)) {
        Some(tip) => with_tip(error, tip),
        None => error,
    }
}

/// Adds the purpose of a flag that excludes another one.
fn excluded(verb: Option<&Command>, error: clap::Error) -> clap::Error {
    let other = match error.get(ContextKind::PriorArg) {
        Some(ContextValue::Strings(others)) => others.first().map(String::as_str),
        _ => text(&error, ContextKind::PriorArg),
    };
    let tip = || {
        let verb = verb?;
        let one = shown_as(verb, text(&error, ContextKind::InvalidArg)?)?;
        let other = shown_as(verb, other?)?;
        let excludes = |own: &Arg, other: &Arg| verb.get_arg_conflicts_with(own).contains(&other);
        let mut pairs = [(one, other), (other, one)].into_iter();
        purpose(pairs.find(|(own, other)| excludes(own, other))?.0)
    };
    match tip() {
        Some(tip) => with_tip(error, tip),
        None => error,
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// Returns the argument that clap shows as `--plan <FILE>`.
fn shown_as<'a>(verb: &'a Command, shown: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|arg| arg.to_string() == shown)
}

/// Returns the first sentence of a flag's help.
fn purpose(arg: &Arg) -> Option<String> {
    let help = arg.get_help()?.to_string();
    let first = first_sentence(&help).trim_end_matches('.');
    Some(format!("{arg}: {first}"))
}

/// Moves the list of possible values into a tip, as for other flags.
fn listed(error: clap::Error) -> clap::Error {
    let values = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => values,
        _ => return error,
    };
    let meant = match text(&error, ContextKind::SuggestedValue) {
        Some(value) => format!("did you mean `{value}`? There are"),
        None => "there are".to_owned(),
    };
    let tip = format!("{meant} {}", values.join(", "));
    let mut error = with_tip(error, tip);
    error.remove(ContextKind::ValidValue);
    error.remove(ContextKind::SuggestedValue);
    error
}

/// Replaces clap's guess and the usage, which adds nothing, by a tip.
fn with_tip(mut error: clap::Error, tip: String) -> clap::Error {
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Usage);
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![tip.into()]),
    );
    error
}

/// Adds a tip with the equivalent verb here, if this build has it.
fn unknown_verb(command: &Command, error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let asked = unknown.to_lowercase();
    let found = VERBS.iter().find(|(names, _)| is_one(names, &asked));
    let has = |line: &str| {
        let verb = line.split(' ').next().unwrap_or_default();
        verb.starts_with('-') || command.find_subcommand(verb).is_some()
    };
    match found {
        Some((_, line)) if has(line) => {
            let tip = format!("instead of `{asked}`, write: {} {line}", command.get_name());
            with_tip(error, tip)
        }
        // clap guesses nothing for `help`.
        _ if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            let verbs = command.get_subcommands().map(Command::get_name);
            match meant(&asked, verbs) {
                Some(verb) => with_tip(error, format!("a similar verb exists: `{verb}`")),
                None => error,
            }
        }
        _ => error,
    }
}

/// Whether `name` is one of `names`, which are separated by blanks.
fn is_one(names: &str, name: &str) -> bool {
    names.split(' ').any(|own| own == name)
}

/// Removes clap's guess if it is not similar, and the usage, which a good guess makes superfluous.
fn plain(mut error: clap::Error, name: &str) -> clap::Error {
    let Some(ContextValue::String(guess)) = error.get(ContextKind::SuggestedArg) else {
        return error;
    };
    let guess = guess.trim_start_matches('-').to_owned();
    if meant(name, [guess.as_str()]).is_none() {
        error.remove(ContextKind::SuggestedArg);
    }
    error.remove(ContextKind::Usage);
    error
}

/// Returns a replacement for a flag that this verb lacks: `unknown` as it was written, `name` with dashes
/// between its words.
fn tip(verb: &Command, unknown: &str, name: &str) -> Option<String> {
    // `--d_model` instead of `--d-model`.
    if let Some(long) = of_name(verb, name).and_then(Arg::get_long) {
        return Some(format!("write `--{long}`"));
    }
    let fits = |text: &str| match text.strip_prefix("--") {
        Some(flag) => flag
            .split([' ', ':', ','])
            .next()
            .is_some_and(|long| of_name(verb, long).is_some()),
        None => true,
    };
    let mut own = FLAGS.iter().filter(|(names, _)| is_one(names, name));
    let (_, text) = own.find(|(_, text)| fits(text))?;
    Some(format!("instead of `{unknown}`, write: {text}"))
}

/// Returns the flag of this name, which may be an alias.
fn of_name<'a>(verb: &'a Command, name: &str) -> Option<&'a Arg> {
    let is = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    verb.get_arguments().find(is)
}

/// Returns the likely meaning of a word without a flag.
fn positional(verb: &Command, args: &[OsString], word: &str) -> Option<String> {
    let given = |flag: &str| args.iter().any(|own| own == flag);
    if let Some(tip) = without_own(verb, args, word).or_else(|| one_value(args, word)) {
        return Some(tip);
    }
    let path = Path::new(word);
    let is = |ending: &str| {
        path.extension()
            .is_some_and(|own| own.eq_ignore_ascii_case(ending))
    };
    let flag = match verb.get_name() {
        "train" if find_run::is_run(path) => "--resume",
        "train" if is("pt2") => "--model",
        "train" if is("toml") => "--config",
        // A bare name, where no file is.
        "train" if path.extension().is_none() && !path.exists() => "--model",
        "train" => "--data",
        "generate" if given("--run") || given("--checkpoint") => "--prompt",
        "eval" | "generate" | "export" => "--run",
        "profile" => "--model",
        "plan" => "--profile",
        "simulate" => "--schedule",
        _ => return None,
    };
    (!given(flag)).then(|| format!("write `{flag} {}`, if that is what it is", quoted(word)))
}

/// Detects a flag that lost its value to the flag before, which has none: flags that take `-1e-3` take
/// any text.
fn without_own(verb: &Command, args: &[OsString], word: &str) -> Option<String> {
    let at = args.iter().position(|own| own == word)?;
    let before = |count: usize| args[at.checked_sub(count)?].to_str()?.strip_prefix("--");
    let (flag, taken) = (before(2)?, before(1)?);
    let mut flags = verb.get_arguments();
    let takes_all = |arg: &Arg| arg.get_long() == Some(flag) && arg.is_allow_hyphen_values_set();
    flags
        .find(|arg| takes_all(arg))
        .map(|_| format!("`--{flag}` has no value: write one between it and `--{taken}`"))
}

/// Detects a second word after a flag that takes one value, where both were meant as its value.
fn one_value(args: &[OsString], word: &str) -> Option<String> {
    let at = args.iter().position(|own| own == word)?;
    let before = |count: usize| args[at.checked_sub(count)?].to_str();
    let (flag, value) = (before(2)?, before(1)?);
    match flag {
        "--sweep" if !value.contains('=') => Some(format!(
            "write `{flag} {}`",
            quoted(format!("{value}={word}"))
        )),
        "--devices" | "--memory" | "--balance" => Some(format!(
            "values have commas and no blanks between them: `{flag} {}`",
            quoted(format!("{value},{word}"))
        )),
        _ => None,
    }
}

/// Names the verbs that have a flag which this verb lacks.
fn of_another(command: &Command, name: &str) -> Option<String> {
    let verbs = with_flag(command, name);
    (!verbs.is_empty()).then(|| is_of(name, &verbs))
}

/// Returns the verbs with this flag, in the order of the help.
fn with_flag<'a>(command: &'a Command, name: &str) -> Vec<&'a str> {
    let has = |verb: &&Command| of_name(verb, name).is_some();
    let mut verbs: Vec<&Command> = command.get_subcommands().filter(has).collect();
    verbs.sort_by_key(|verb| verb.get_display_order());
    verbs.into_iter().map(Command::get_name).collect()
}

fn is_of(name: &str, verbs: &[&str]) -> String {
    let verbs: Vec<String> = verbs.iter().map(|verb| format!("`{verb}`")).collect();
    format!("`--{name}` is a flag of {}", verbs.join(", "))
}

/// Returns the command line with the first verb that has its flag, for a command line without a verb.
fn without_verb(command: &Command, args: &[OsString], unknown: &str, name: &str) -> Option<String> {
    let verbs = with_flag(command, name);
    let first = verbs.first()?;
    let is_flag = |arg: &OsString| arg.to_string_lossy().starts_with(unknown);
    let at = 1 + args.iter().skip(1).position(is_flag)?;
    let mut words = vec![command.get_name().to_owned()];
    words.extend(args[1..at].iter().map(quoted));
    words.push((*first).to_owned());
    words.extend(args[at..].iter().map(quoted));
    let told = is_of(name, &verbs);
    Some(format!(
        "{told}: write the verb before it: {}",
        words.join(" ")
    ))
}
