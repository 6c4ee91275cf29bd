//! Checks that the program accepts every command line in the book and the README.

use std::fs;

use clap::error::ErrorKind;

use crate::made::gpipe;
use crate::pages::{all, root};

/// The pages of the book and the READMEs, with their names.
fn pages() -> Vec<(String, String)> {
    let readmes = ["README.md", "benches/README.md"].map(|name| {
        let text = fs::read_to_string(root().join(name)).unwrap();
        (name.to_owned(), text)
    });
    let pages = all().into_iter().map(|page| (page.name, page.text));
    pages.chain(readmes).collect()
}

/// The words of shell code, one list per command. Understands quotes, comments, `\` at the end of a line and
/// operators between commands, but not expansions.
fn commands(code: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut chars = code
        .replace("\\\n", " ")
        .chars()
        .collect::<Vec<_>>()
        .into_iter();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let quoted: String = chars.by_ref().take_while(|&end| end != c).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '#' if word.is_none() => {
                chars.by_ref().find(|&end| end == '\n');
                all.push(std::mem::take(&mut words));
            }
            ' ' => words.extend(word.take()),
            '\n' | '&' | ';' | '|' | '>' => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all
}

/// The program's arguments, with its name, if a command runs it.
fn arguments(words: &[String]) -> Option<Vec<String>> {
    let program = |word: &String| word.rsplit('/').next() == Some("gpipe-rs");
    let variable = |word: &&String| word.contains('=');
    let start = words.iter().take_while(variable).count();
    let words = &words[start..];
    if words.first().is_some_and(program) {
        return Some(words.to_vec());
    }
    let runs = words.starts_with(&["cargo".to_owned(), "run".to_owned()]);
    let other = words.iter().any(|word| word == "--example" || word == "-p");
    if !runs || other {
        return None;
    }
    let rest = words.split(|word| word == "--").nth(1)?;
    Some([&["gpipe-rs".to_owned()], rest].concat())
}

/// Fenced shell code, and inline code that begins with the program's name.
fn found(page: &str) -> (Vec<String>, Vec<String>) {
    let (mut blocks, mut inline) = (Vec::new(), Vec::new());
    let mut fence: Option<(bool, String)> = None;
    for line in page.lines() {
        match (&mut fence, line.trim_start().strip_prefix("```")) {
            (Some((shell, code)), Some(_)) => {
                if *shell {
                    blocks.push(std::mem::take(code));
                }
                fence = None;
            }
            (Some((_, code)), None) => code.extend([line, "\n"]),
            (None, Some(kind)) => fence = Some((kind == "sh", String::new())),
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                let own = spans.filter(|span| span.starts_with("gpipe-rs "));
                inline.extend(own.map(str::to_owned));
            }
        }
    }
    (blocks, inline)
}

fn refusal(args: Vec<String>) -> Option<clap::Error> {
    gpipe().try_get_matches_from(args).err()
}

#[test]
fn every_command_line_of_the_book_is_accepted() {
    let mut seen = 0;
    for (page, text) in pages() {
        let (blocks, _) = found(&text);
        let commands = blocks.iter().flat_map(|code| commands(code));
        for args in commands.filter_map(|words| arguments(&words)) {
            seen += 1;
            let line = args.join(" ");
            if let Some(error) = refusal(args) {
                assert!(!error.use_stderr(), "{page}: `{line}`\n{error}");
            }
        }
    }
    assert!(seen > 30, "{seen}");
}

/// In running text arguments may be left out, but those given must be valid.
#[test]
fn every_command_named_in_the_text_exists() {
    let mut seen = 0;
    for (page, text) in pages() {
        let (_, inline) = found(&text);
        for line in inline {
            seen += 1;
            let line = line.trim_end_matches('…').trim_end().to_owned();
            let words = commands(&line).concat();
            let Some(error) = refusal(words) else {
                continue;
            };
            let incomplete = matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    | ErrorKind::DisplayHelp
            );
            let said = error.to_string();
            let incomplete = incomplete || said.contains("a value is required for");
            // A placeholder for verbs, as in `gpipe-rs VERB --help`.
            assert!(
                incomplete || line.contains("VERB"),
                "{page}: `{line}`\n{said}"
            );
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn shell_code_is_cut_into_commands() {
    let code = "A=1 gpipe-rs a --b 'c d' \\\n  e && x/gpipe-rs f # g\n# gpipe-rs h\ncargo run --locked -- i > j\n";
    let found: Vec<_> = commands(code)
        .iter()
        .filter_map(|words| arguments(words))
        .map(|args| args[1..].join("|"))
        .collect();
    assert_eq!(found, ["a|--b|c d|e", "f", "i"]);
}
