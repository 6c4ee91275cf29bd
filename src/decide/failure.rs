//! Reasons why a verb failed, and their exit codes.

use std::process::ExitCode;

use gpipe_partitioner::words;

use super::say;

/// Added to a signal's number in the exit code of a process that the signal ended, as in shells.
pub const BY_SIGNAL: i32 = 128;

/// Reason why a verb failed.
#[derive(Debug)]
pub enum Failure {
    /// The caller asked for something impossible: exit code 2.
    Usage(String),
    /// Something failed during the run: exit code 1.
    Run(anyhow::Error),
    /// Another process failed: its exit code.
    Exit(String, u8),
    /// The run ended successfully, but early, because this signal asked for it: the exit code is
    /// that of shells for a process ended by the signal, so that no later command of a script runs.
    Asked(i32),
}

impl Failure {
    /// Returns the message.
    pub fn said(&self) -> String {
        match self {
            Self::Usage(message) | Self::Exit(message, _) => message.clone(),
            Self::Run(error) => with_causes(error),
            Self::Asked(signal) => format!("signal {signal} asked for the end"),
        }
    }

    /// Appends `more` to the message.
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
    pub fn code(&self) -> u8 {
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

/// Prints the failure, if there is one, and returns the exit code.
pub fn ended(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    // Whoever sent the signal need not be told.
    if !matches!(failure, Failure::Asked(_)) {
        say(&format!("error: {}", words::brief(&failure.said())));
    }
    ExitCode::from(failure.code())
}

/// Returns an error and its causes; a cause is left out if an earlier text contains it.
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
