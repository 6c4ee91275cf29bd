//! `gpipe-rs env`: describes this machine, and this process's rank.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::thread;

use serde_json::json;

use super::{Failure, output, world};
use gpipe_torch::memory::room_on;
use gpipe_torch::{CudaDevice, CudaReport};
use tch::Device;

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
    let libtorch = gpipe_torch::libtorch_version();
    let room = room_on(Device::Cpu).ok();
    let cuda = CudaReport::new();
    if args.json {
        let object = json!({
            "gpipe": env!("CARGO_PKG_VERSION"),
            "libtorch": libtorch,
            "mkl_cbwr": gpipe_torch::mkl_mode().map(|(mode, _)| mode),
            "cpu_cores": cores,
            "cpu_memory": room.map(|(_, total)| total),
            "cpu_memory_free": room.map(|(free, _)| free),
            "cuda_driver": cuda.driver,
            "cuda_libtorch": cuda.libtorch_cuda,
            "cuda_devices": cuda.devices.len(),
            "cuda": cuda.devices,
            "cuda_simulated": cuda.simulated,
            "cuda_missing": cuda.missing,
            "world": world::object(),
        });
        return output::print(&format!("{object}\n"));
    }
    let room = room.map_or(String::new(), |(free, total)| {
        format!(", {free} of {total} of memory free")
    });
    let world = format!("world     {}\n", world::line());
    // Other processes of a host would repeat the first one's output.
    if world::local_rank().is_some_and(|rank| rank > 0) {
        return output::print(&fitted(&world));
    }
    output::print(&fitted(&format!(
        "gpipe-rs  {}\nlibtorch  {libtorch}{}\n{}cpu       {cores} cores{room}\n{}{world}",
        env!("CARGO_PKG_VERSION"),
        made_with(&cuda),
        mkl(),
        devices(&cuda),
    )))
}

/// Columns before a line's text.
const INDENT: usize = 10;

/// Wraps lines that are too long for the terminal, indented below their text.
fn fitted(text: &str) -> String {
    if !std::io::stdout().is_terminal() {
        return text.to_owned();
    }
    let width = output::width(None);
    let room = width.saturating_sub(INDENT).max(INDENT);
    let line = |line: &str| {
        if line.len() <= width || line.len() < INDENT || !line.is_char_boundary(INDENT) {
            return format!("{line}\n");
        }
        let (title, said) = line.split_at(INDENT);
        let said = output::wrapped(said, room).replace('\n', &format!("\n{:INDENT$}", ""));
        format!("{title}{said}\n")
    };
    text.lines().map(line).collect()
}

fn made_with(cuda: &CudaReport) -> String {
    let version = cuda.libtorch_cuda.as_ref();
    version.map_or(String::new(), |version| {
        format!(", made with CUDA {version}")
    })
}

fn mkl() -> String {
    let Some((mode, told)) = gpipe_torch::mkl_mode() else {
        return String::new();
    };
    let by = if told {
        ", as the environment says"
    } else {
        ""
    };
    let means = if mode == "OFF" {
        "the last bits depend on where numbers lie in memory"
    } else {
        "the same bits wherever numbers lie in memory"
    };
    format!("mkl       MKL_CBWR={mode}{by}: {means}\n")
}

fn devices(cuda: &CudaReport) -> String {
    let mut text = match (&cuda.simulated, &cuda.driver) {
        (Some(settings), _) => format!(
            "driver    none: the GPUs are simulated by threads of the CPU ({settings}); what they \
             take in time and memory is no GPU's\n"
        ),
        (None, Some(version)) => format!("driver    NVIDIA, for CUDA up to {version}\n"),
        (None, None) => "driver    no NVIDIA driver\n".to_owned(),
    };
    for device in &cuda.devices {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<9} {}", device.device, line(device));
    }
    if let Some(missing) = &cuda.missing {
        let _ = writeln!(text, "cuda      none: {missing}");
    }
    text
}

fn line(device: &CudaDevice) -> String {
    let free = device
        .free
        .map_or(String::new(), |free| format!("{free} free of "));
    let peers = match device.peers.as_slice() {
        [] => "reaches no other device's memory by itself".to_owned(),
        peers => format!("reaches the memory of {}", peers.join(", ")),
    };
    format!(
        "{} (compute {}), {free}{} of memory; {peers}",
        device.name, device.compute_capability, device.memory
    )
}
