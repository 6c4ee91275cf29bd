//! `gpipe-rs env`: what this machine offers.

use std::thread;

use serde_json::json;

use super::{Failure, output};

/// Arguments of `gpipe-rs env`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: gpipe-rs env --json")]
pub(super) struct Args {
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let libtorch = crate::libtorch_version();
    let cuda = crate::cuda_available();
    if args.json {
        let (count, missing) = match &cuda {
            Ok(count) => (*count, None),
            Err(why) => (0, Some(why.to_string())),
        };
        let object = json!({
            "gpipe": env!("CARGO_PKG_VERSION"),
            "libtorch": libtorch,
            "cpu_cores": cores,
            "cuda_devices": count,
            "cuda_missing": missing,
        });
        return output::print(&format!("{object}\n"));
    }
    let cuda = match cuda {
        Ok(count) => format!(
            "{count} device(s): cuda:0 to cuda:{}",
            count.saturating_sub(1)
        ),
        Err(why) => format!("none: {why}"),
    };
    output::print(&format!(
        "gpipe-rs  {}\nlibtorch  {libtorch}\ncpu       {cores} cores\ncuda      {cuda}\n",
        env!("CARGO_PKG_VERSION")
    ))
}
