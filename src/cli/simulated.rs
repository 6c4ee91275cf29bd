//! `--simulate-gpus`: runs the verb with simulated CUDA devices.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use tch::Device;

use super::Failure;
use gpipe_torch::{
    SIMULATE_GPUS, cuda_available, cuda_devices_here, gpus_are_simulated, simulated_gpus,
};

const FLAG: &str = "--simulate-gpus";

/// Executes the command line again without the flag: the library that replaces libtorch's CUDA half
/// must be loaded before anything else of CUDA. The process keeps its id, its signals and its exit
/// code.
///
/// *Returns* only on failure, with the reason.
pub(super) fn execute_again(settings: &str, args: &[OsString]) -> Failure {
    let program = std::env::current_exe().context("this program is not found again");
    let (program, mut rest) = match program {
        Ok(program) => (program, without_flag(args)),
        Err(error) => return Failure::Run(error),
    };
    let mut command = Command::new(program);
    if !rest.is_empty() {
        command.arg0(rest.remove(0));
    }
    let error = command.args(rest).env(SIMULATE_GPUS, settings).exec();
    Failure::Run(anyhow::Error::new(error).context("this program cannot be executed again"))
}

/// Returns the flag's value if the flag is first, regardless of later errors.
pub(super) fn asked(args: &[OsString]) -> Option<String> {
    let first = args.get(1)?.to_str()?;
    let joined = first
        .strip_prefix(FLAG)
        .and_then(|rest| rest.strip_prefix('='));
    let apart = || args.get(2).filter(|_| first == FLAG)?.to_str();
    let settings = joined.or_else(apart)?;
    (!settings.is_empty()).then(|| settings.to_owned())
}

/// The flag and its value are before the verb, and occur once: clap has checked that.
fn without_flag(args: &[OsString]) -> Vec<OsString> {
    let mut rest = args.to_vec();
    if let Some(at) = args.iter().position(|arg| arg == FLAG) {
        rest.drain(at..args.len().min(at + 2));
    } else {
        let joined = format!("{FLAG}=");
        let at = |arg: &OsString| arg.as_encoded_bytes().starts_with(joined.as_bytes());
        if let Some(at) = args.iter().position(at) {
            rest.remove(at);
        }
    }
    rest
}

/// Notes that there are GPUs, including simulated ones, that the verb does not use, although the user
/// did not request the CPU.
pub(super) fn unused(devices: &[Device]) -> Option<String> {
    let uses = devices.iter().any(|device| device.is_cuda());
    let gpus = if uses { 0 } else { cuda_devices_here() };
    let (are, kind) = match (gpus, gpus_are_simulated()) {
        (0, _) => return None,
        (1, false) => ("is", "GPU"),
        (1, true) => ("is", "simulated GPU"),
        (_, false) => ("are", "GPUs"),
        (_, true) => ("are", "simulated GPUs"),
    };
    Some(format!(
        "note: {gpus} {kind} {are} here and unused: --devices cuda"
    ))
}

/// Checks that requested simulated GPUs exist: otherwise a verb would only fail when using them.
pub(super) fn check() -> Result<(), Failure> {
    if simulated_gpus().is_some() {
        cuda_available().map_err(|why| Failure::Usage(why.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_goes_and_nothing_else() {
        let without = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let rest = without_flag(&args).into_iter();
            rest.map(|arg| arg.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        let rest = ["gpipe-rs", "train", "--lr", "0.1"];
        let apart = ["gpipe-rs", "--simulate-gpus", "4", "train", "--lr", "0.1"];
        let joined = ["gpipe-rs", "--simulate-gpus=4", "train", "--lr", "0.1"];
        assert_eq!(
            (without(&apart), without(&joined)),
            (rest.map(str::to_owned).to_vec(), without(&rest))
        );
        assert_eq!(without(&rest), rest);
    }
}
