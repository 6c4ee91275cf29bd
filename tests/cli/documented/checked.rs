//! Checks a line as far as possible without running it.

use std::fs;
use std::path::Path;

use super::pages::{Line, root};
use super::place::Place;

/// Checks that a line would be understood after these others of its page.
pub(super) fn checked(place: &Place, line: &Line, before: &[Line]) -> Result<(), String> {
    parses(place, &line.text)?;
    match line.text.split_whitespace().next() {
        Some("docker") => copied(place, line, before),
        _ => commands(place, &line.text),
    }
}

/// Checks the commands of shell code, one a line.
fn commands(place: &Place, code: &str) -> Result<(), String> {
    for command in code.replace("\\\n", " ").lines() {
        let mut words = command
            .split_whitespace()
            .skip_while(|word| word.contains('='));
        match words.next() {
            Some("cargo") => {
                said(place, command, &[("CHECK", "1")])?;
            }
            Some("make") => commands(place, &recipe(place, command)?)?,
            _ => {}
        }
        scripts(command)?;
    }
    Ok(())
}

/// Returns the commands that make would run.
fn recipe(place: &Place, command: &str) -> Result<String, String> {
    let dry = command.replacen("make", "make --dry-run --no-print-directory", 1);
    let recipe = said(place, &dry, &[])?;
    parses(place, &recipe)?;
    Ok(recipe)
}

/// Checks that a shell can parse code.
fn parses(place: &Place, code: &str) -> Result<(), String> {
    said(place, "printf '%s\\n' \"$CODE\" | sh -n", &[("CODE", code)]).map(drop)
}

/// Checks that the scripts named in a command are in the repository.
fn scripts(command: &str) -> Result<(), String> {
    let words = command.split(|c: char| c.is_whitespace() || "\"'()".contains(c));
    let mut scripts = words.filter(|word| {
        let script = Path::new(word)
            .extension()
            .is_some_and(|end| end == "py" || end == "sh");
        // A page's own scripts are saved in the reader's current folder.
        let own = !word.contains('/');
        let made = own || word.starts_with("cuda-check/") || word.contains("target/");
        script && !made && !word.starts_with(['/', '$'])
    });
    match scripts.find(|script| !root().join(script).exists()) {
        Some(script) => Err(format!("there is no {script}")),
        None => Ok(()),
    }
}

/// Checks that an earlier line of the page creates the file that the Dockerfile of `docker build` copies.
fn copied(place: &Place, line: &Line, before: &[Line]) -> Result<(), String> {
    let Some(file) = line
        .text
        .split_whitespace()
        .skip_while(|word| *word != "-f")
        .nth(1)
    else {
        return Ok(());
    };
    let dockerfile =
        fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    for copy in dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
    {
        let (from, _) = copy.split_once(' ').unwrap();
        let (folder, _) = from.rsplit_once('/').unwrap_or((from, ""));
        let makes = |line: &Line| {
            let make = line.text.starts_with("make ");
            make && recipe(place, &line.text).is_ok_and(|recipe| recipe.contains(folder))
        };
        if !root().join(from).exists() && !before.iter().any(makes) {
            return Err(format!("{file} copies {from}, which no line before makes"));
        }
    }
    Ok(())
}

/// Output of shell code, or its error if it fails.
fn said(place: &Place, code: &str, variables: &[(&str, &str)]) -> Result<String, String> {
    let output = place.shell(code, variables);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "`{code}`: {}",
        String::from_utf8_lossy(&output.stderr)
    ))
}
