//! `--simulate-gpus`: the verb in a process whose CUDA devices are simulated.

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

/// Executes the command line anew without the flag: a library in the place of libtorch's CUDA
/// half must be loaded before anything else of CUDA is. The process stays the same one, with
/// its number, its signals and its exit code.
///
/// *Returns* only where that is not possible, with the reason.
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

/// The flag's value where it stands first, whatever is wrong behind it.
pub(super) fn asked(args: &[OsString]) -> Option<String> {
    let first = args.get(1)?.to_str()?;
    let joined = first
        .strip_prefix(FLAG)
        .and_then(|rest| rest.strip_prefix('='));
    let apart = || args.get(2).filter(|_| first == FLAG)?.to_str();
    let settings = joined.or_else(apart)?;
    (!settings.is_empty()).then(|| settings.to_owned())
}

/// The flag and its value are before the verb, and at most once: clap has seen to it.
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

/// Tells that there are GPUs, simulated ones among them, where a verb computes on none although nobody
/// has named the CPU.
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

/// Where simulated GPUs are asked for, that they are there: what a verb would hear of them only
/// when it uses them.
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
