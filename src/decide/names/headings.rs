//! Headings for the flags of verbs with many flags, and a short help beside the long one.

use clap::{Arg, Command};

/// Headings of flags in the help of verbs with many.
// The names are the texts.
#[allow(missing_docs)]
pub mod heading {
    pub const MODEL: &str = "Model";
    pub const PIPELINE: &str = "Pipeline";
    pub const MACHINES: &str = "Replicas and machines";
    pub const TIMES: &str = "Times and bytes";
    pub const RISKS: &str = "Jitter and failures";
    pub const MEASURING: &str = "Measuring";
    pub const TRAINING: &str = "Training";
    pub const DATA: &str = "Data";
    pub const EVALUATION: &str = "Evaluation";
    pub const OUTPUT: &str = "Files and output";
}

/// Gives the flags of a verb with headings the first sentence of their help as the short help.
pub(super) fn with_short_help(verb: Command) -> Command {
    if verb
        .get_arguments()
        .all(|arg| arg.get_help_heading().is_none())
    {
        return verb;
    }
    verb.mut_args(|arg: Arg| {
        let Some(full) = arg.get_help().map(ToString::to_string) else {
            return arg;
        };
        let short = first_sentence(&full).to_owned();
        if arg.get_long_help().is_some() || short == full {
            return arg;
        }
        arg.help(short).long_help(full)
    })
}

/// Returns the first sentence of a help text, such as `Devices, a stage and a thread each`.
pub(super) fn first_sentence(text: &str) -> &str {
    let mut open = 0_i32;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => open += 1,
            ')' => open -= 1,
            '.' | ';' if open == 0 && text[at + 1..].starts_with(' ') => return &text[..at],
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_before_what_explains_it() {
        assert_eq!(
            first_sentence("Devices: `cpu*2`; may repeat"),
            "Devices: `cpu*2`"
        );
        assert_eq!(first_sentence("Rate. The highest"), "Rate");
        assert_eq!(first_sentence("Such as 3.5"), "Such as 3.5");
        // Regression: the short help of `--chunks` was `Stages of each device (virtual stages`.
        assert_eq!(
            first_sentence("Stages (virtual; or not); by default 1"),
            "Stages (virtual; or not)"
        );
    }
}
