//! Why a verb did not do its work, and the exit code that says so.

use std::process::ExitCode;

use gpipe_partitioner::words;

use super::say;

/// What a signal's number is added to in the exit code of what it ended, as shells have it.
pub(crate) const BY_SIGNAL: i32 = 128;

/// Why a verb did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller asked for something that cannot be: exit code 2.
    Usage(String),
    /// Something failed on the way: exit code 1.
    Run(anyhow::Error),
    /// Another process failed: its exit code.
    Exit(String, u8),
    /// It ended well, but earlier than it was to, since this signal asked for it: the exit code is
    /// the one that shells give to what a signal ends, so that no command behind it goes on.
    Asked(i32),
}

impl Failure {
    /// What is said of it.
    pub(crate) fn said(&self) -> String {
        match self {
            Self::Usage(message) | Self::Exit(message, _) => message.clone(),
            Self::Run(error) => with_causes(error),
            Self::Asked(signal) => format!("signal {signal} asked for the end"),
        }
    }

    /// The same with more behind what it says.
    pub(crate) fn with(self, more: &str) -> Self {
        let said = self.said() + more;
        match self {
            Self::Usage(_) => Self::Usage(said),
            Self::Run(_) => Self::Run(anyhow::Error::msg(said)),
            Self::Exit(_, code) => Self::Exit(said, code),
            Self::Asked(signal) => Self::Asked(signal),
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Run(_) => 1,
            Self::Exit(_, code) => *code,
            Self::Asked(signal) => u8::try_from(BY_SIGNAL + signal).unwrap_or(1),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Run(error.into())
    }
}

/// Says what failed, if anything did.
pub(crate) fn ended(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    // Whoever asked need not be told.
    if !matches!(failure, Failure::Asked(_)) {
        say(&format!("error: {}", words::brief(&failure.said())));
    }
    ExitCode::from(failure.code())
}

/// An error and its causes; one whose text the errors before have in theirs is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}
