//! Shell completions and `man` pages of the command.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::{gpipe, printed};

fn here() -> &'static Path {
    Path::new(".")
}

/// The verbs listed in the help.
fn verbs() -> Vec<String> {
    let help = printed(here(), "--help");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let name = |line: &str| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    };
    let verbs: Vec<String> = listed.filter_map(name).collect();
    assert!(verbs.contains(&"simulate".to_owned()), "{help}");
    verbs
}

#[test]
fn every_shell_completes_every_verb() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(here(), &format!("completions {shell}"));
        for verb in verbs() {
            assert!(script.contains(&verb), "{shell}: {verb}");
        }
        assert!(script.contains("cuda-graphs"), "{shell}");
    }
    let wrong = gpipe(here(), "completions tcsh");
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn bash_completes_verbs_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("gpipe-rs");
    fs::write(&script, printed(here(), "completions bash")).unwrap();
    let completed = |words: &[&str]| {
        let line = format!(
            "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _gpipe__rs gpipe-rs '{}' ''; \
             echo \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
        );
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed(&["gpipe-rs", "simu"]), "simulate");
    assert_eq!(completed(&["gpipe-rs", "plan", "--node-l"]), "--node-link");
    let previous = |flag: &str, word: &str| {
        let line = format!(
            "source '{}'; COMP_WORDS=(gpipe-rs simulate {flag} {word}); COMP_CWORD=3; \
             _gpipe__rs gpipe-rs '{word}' '{flag}'; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(previous("--schedule", "zb"), "zb-h1 zb-h2 zbv");
}

#[test]
fn the_manual_has_a_page_for_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let told = gpipe(folder.path(), "man -o pages");
    assert!(told.status.success());
    for verb in verbs() {
        let path = folder.path().join(format!("pages/gpipe-rs-{verb}.1"));
        let page = fs::read_to_string(&path).unwrap();
        assert!(page.contains(&format!(".TH gpipe-rs-{verb} 1")), "{verb}");
    }
    let first = printed(here(), "man");
    let written = fs::read_to_string(folder.path().join("pages/gpipe-rs.1")).unwrap();
    assert_eq!(first, written);
}
