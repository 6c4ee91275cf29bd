//! Devices by name, and the settings of a thread that computes on one.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use gpipe_partitioner::{Cores, DeviceId, DeviceNames};
use tch::Device;

use super::error::TorchError;
use super::{affinity, ffi};
use gpipe_engine::{Sharing, Unpinned};

/// Returns the name that `parse_device` reads: `cpu` or `cuda:0`.
pub fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

/// Parses the command's device list, separated by commas: `cpu*2`, `cuda:0-3`, all of `cuda`, a
/// number such as `4`, or `auto` (the machine's CUDA devices, or a stage on the CPU for each core).
///
/// # Errors
/// Any other text; the CUDA devices do not exist.
pub fn parse_devices(list: &str) -> Result<Vec<Device>, TorchError> {
    let mut all = Vec::new();
    for entry in list.split(',') {
        let names = entry.parse::<DeviceNames>().map_err(TorchError::new)?;
        all.extend(named(names)?);
    }
    Ok(all)
}

fn named(names: DeviceNames) -> Result<Vec<Device>, TorchError> {
    let all = |count: usize| (0..count).map(Device::Cuda).collect();
    Ok(match names {
        DeviceNames::Cpu(times) => vec![Device::Cpu; times],
        DeviceNames::Cuda { first, last, times } => (first..=last)
            .flat_map(|index| vec![Device::Cuda(index); times])
            .collect(),
        DeviceNames::AllCuda => all(cuda_available()
            .map_err(|why| TorchError::new(format!("device `cuda`: {why}{}", instead())))?),
        DeviceNames::Auto => match cuda_available() {
            Ok(count) => all(count),
            Err(_) => vec![Device::Cpu; cores()],
        },
        DeviceNames::Number(asked) => match cuda_available() {
            Err(_) => vec![Device::Cpu; asked],
            Ok(count) if asked <= count => all(asked),
            Ok(count) => {
                return Err(TorchError::new(format!(
                    "there are {count} CUDA devices, and {asked} are asked for: `cpu*{asked}` are on the CPU, \
                     and `cuda:0*{asked}` are on one GPU"
                )));
            }
        },
    })
}

/// Returns the number of CUDA devices, or why there is none.
///
/// If there is a driver, the CUDA half of libtorch is loaded when the process starts, unless
/// `CUDA_VISIBLE_DEVICES` hides all devices (it is empty, or `-1`); otherwise it is loaded at the
/// first call. libtorch remembers whether it was loaded at its first use.
///
/// # Errors
/// CUDA cannot be used on this machine; the message says what is missing.
pub fn cuda_available() -> Result<usize, TorchError> {
    static FOUND: OnceLock<Result<usize, TorchError>> = OnceLock::new();
    FOUND.get_or_init(find_cuda).clone()
}

/// Returns the number of CUDA devices, for callers that do not need them: without a driver,
/// libtorch's CUDA half is not loaded.
pub fn cuda_devices_here() -> usize {
    if !ffi::simulates_gpus() && ffi::driver().is_err() {
        return 0;
    }
    cuda_available().unwrap_or(0)
}

/// Environment variable that requests simulated GPUs.
pub const SIMULATE_GPUS: &str = "GPIPE_SIMULATE_GPUS";

/// Returns the settings of the simulated GPUs that replace CUDA's devices; `None` if they are not
/// requested.
pub fn simulated_gpus() -> Option<String> {
    let settings = std::env::var_os(SIMULATE_GPUS).filter(|_| ffi::simulates_gpus());
    settings.map(|settings| settings.to_string_lossy().into_owned())
}

/// Returns whether the CUDA devices only simulate time: whatever is written to their memory, it
/// reads as zeros.
pub(crate) fn only_time_passes() -> bool {
    time_model().is_some()
}

/// Returns the device model of the simulated time: `h100`, or the path of a file.
pub fn time_model() -> Option<String> {
    let settings = simulated_gpus()?;
    // The last setting counts.
    let named = |setting: &str| setting.strip_prefix("time=").map(str::to_owned);
    settings.rsplit(',').find_map(named)
}

/// Returns whether simulated GPUs replace CUDA's devices.
pub fn gpus_are_simulated() -> bool {
    ffi::simulates_gpus()
}

/// Returns whether CUDA devices are simulated and compute, so that their times are this machine's
/// CPU times and say nothing about a GPU.
pub fn gpus_take_cpu_time() -> bool {
    gpus_are_simulated() && !only_time_passes()
}

/// Returns the name of a device for reports, which marks simulated ones so that their figures are
/// not mistaken for a GPU's.
pub(crate) fn device_title(device: Device) -> String {
    let name = device_name(device);
    match device {
        Device::Cuda(_) if ffi::simulates_gpus() => format!("{name} (simulated)"),
        _ => name,
    }
}

/// Returns how to get a libtorch with CUDA for a command in this folder: as `src/packaging/pack.py`
/// lays it out for pip or in an archive, otherwise as the checkout builds it.
fn full_libtorch(folder: &Path) -> &'static str {
    if folder.join("__main__.py").exists() {
        "a PyTorch that has CUDA (`pip install --force-reinstall 'torch==2.11.*'`)"
    } else if folder.join("../lib/torch").exists() {
        "the wheel in place of this archive, which has the CPU's libtorch alone (`pip install` it \
         beside a PyTorch that has CUDA)"
    } else {
        "the full libtorch (`TORCH=full make build`)"
    }
}

fn find_cuda() -> Result<usize, TorchError> {
    if ffi::simulates_gpus() {
        ffi::load_cuda(Path::new("libtorch_cuda.so"))?;
        return ffi::cuda_devices();
    }
    // Found through the binary's rpath, like libtorch_cpu.
    let driver = ffi::driver();
    let no_driver =
        || {
            let why = driver.as_ref().err().map(ToString::to_string);
            why.map(|why| format!(
            "there is no NVIDIA driver that works ({why}): install one for CUDA 13.0 or newer \
             (580 or newer; `nvidia-smi` shows it)"
        ))
        };
    ffi::load_cuda(Path::new("libtorch_cuda.so")).map_err(|error| {
        let own = std::env::current_exe().unwrap_or_default();
        let full = full_libtorch(own.parent().unwrap_or(Path::new("")));
        let half =
            format!("the CUDA half of libtorch cannot be loaded ({error}): install {full}");
        let missing = |why: &str| why.contains("cannot open shared object file");
        TorchError::new(match no_driver() {
            Some(driver) if missing(&driver) && missing(&half) => {
                format!(
                    "neither an NVIDIA driver nor the CUDA half of libtorch is here; for GPUs, install \
                     a driver for CUDA 13.0 or newer (580 or newer; `nvidia-smi` shows it) and {full}"
                )
            }
            Some(driver) => format!("{half}; and {driver}"),
            None => half,
        })
    })?;
    // A driver that is too old, for example, is an error here, not a count of zero.
    let devices = ffi::cuda_devices().unwrap_or(0);
    if devices == 0 {
        let blind = if ffi::cuda_loaded() {
            "libtorch sees no CUDA device though there is a driver: is a GPU visible (`nvidia-smi`, \
             `CUDA_VISIBLE_DEVICES`), and is the driver new enough for CUDA 13.0?"
        } else {
            "libtorch was asked for CUDA before its CUDA half was there, and remembers that there \
             was none: call `gpipe::device::cuda_available()` first thing in `main`, before a seed is set, \
             a device is looked for or anything is computed"
        };
        return Err(TorchError::new(
            no_driver().unwrap_or_else(|| blind.to_owned()),
        ));
    }
    Ok(devices)
}

/// Checks that the devices can be used, and prepares the process for them.
///
/// # Errors
/// A device does not exist; the message names it, with advice.
pub fn prepare(devices: &[Device]) -> Result<(), TorchError> {
    for device in devices {
        match device {
            Device::Cpu => {}
            Device::Cuda(index) => {
                let count = cuda_available().map_err(|why| {
                    TorchError::new(format!("device `cuda:{index}`: {why}{}", instead()))
                })?;
                if *index >= count {
                    return Err(TorchError::new(format!(
                        "device `cuda:{index}`: this machine has {}, numbered from 0",
                        gpipe_partitioner::words::count(count, "CUDA device")
                    )));
                }
            }
            other => {
                return Err(TorchError::new(format!(
                    "{other:?} is not supported: use `cpu` or `cuda:N`"
                )));
            }
        }
    }
    Ok(())
}

/// Suggests alternatives to a GPU, unless they were tried.
fn instead() -> String {
    if gpus_are_simulated() {
        return String::new();
    }
    format!(
        "; without a GPU there are CPU stages (`--devices cpu*2`), and simulated GPUs: `gpipe-rs --simulate-gpus N VERB …`, or \
         {SIMULATE_GPUS}=N in the environment (`make simulated-gpus` in a clone builds them)"
    )
}

/// Makes the C library keep the memory that a step on CPU stages frees, as the next step needs it
/// again. Settings of the C library in the environment take precedence.
pub fn keep_memory(devices: &[Device]) {
    static ONCE: Once = Once::new();
    if on_cpu(devices) > 0 {
        ONCE.call_once(|| {
            let told = |(name, value): (OsString, OsString)| {
                let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
                let tuned = name == "GLIBC_TUNABLES" && value.contains("malloc");
                tuned || (name.starts_with("MALLOC_") && name.ends_with('_'))
            };
            if !std::env::vars_os().any(told) {
                ffi::keep_memory();
            }
        });
    }
}

/// Sets libtorch's per-thread state: the intra-op threads, the current device, and that backwards
/// run on the calling thread.
pub fn prepare_thread(device: Device, threads: usize) -> Result<(), TorchError> {
    ffi::set_threads(threads)?;
    ffi::backward_here()?;
    ffi::set_current_device(device)
}

/// Number of cores available to this process.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn on_cpu(devices: &[Device]) -> usize {
    let on_cpu = devices.iter().filter(|device| **device == Device::Cpu);
    on_cpu.count()
}

/// Returns the intra-op threads per device if the CPU devices share the cores evenly.
pub(crate) fn share_of_cores(devices: &[Device]) -> usize {
    (cores() / on_cpu(devices).max(1)).max(1)
}

/// Returns how many CPU devices run at the same time without waiting for each other's cores.
pub(crate) fn max_concurrent(devices: &[Device], threads: usize) -> usize {
    on_cpu(devices).min((cores() / threads.max(1)).max(1))
}

/// Returns the CPU devices `here` that must take turns, given `sharing`, the devices of all
/// processes that may use the same cores. `None` if the cores suffice for all.
pub(crate) fn turns(
    here: &[(DeviceId, Device)],
    sharing: &[Device],
    threads: usize,
) -> Option<Sharing> {
    let on_cpu_here = here.iter().filter(|(_, device)| *device == Device::Cpu);
    let devices: Vec<DeviceId> = on_cpu_here.map(|(number, _)| *number).collect();
    let (own, all) = (devices.len(), on_cpu(sharing).max(1));
    let max_concurrent = (max_concurrent(sharing, threads) * own / all).max(1);
    (max_concurrent < own).then(|| Sharing {
        devices,
        max_concurrent,
        affinity: if threads == 1 && own == all {
            affinity::core_each()
        } else {
            // Helper threads of a stage with several would stay where they were created, and other
            // processes would be bound to the same cores.
            Arc::new(Unpinned)
        },
    })
}

/// Returns the cores that all `devices` share; `None` if one of them is not the CPU.
pub(crate) fn shared_cores(devices: &[Device], threads: usize) -> Option<Cores> {
    let all = on_cpu(devices) == devices.len();
    all.then(|| Cores::new(cores(), threads).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    /// With deterministic algorithms libtorch fills uninitialized memory with NaN: every tensor was
    /// written twice.
    #[test]
    fn numbers_that_stay_do_not_cost_a_fill_of_all_memory() {
        // A setting of the process: in one of its own.
        const CHILD: &str = "GPIPE_TEST_NO_FILL";
        if std::env::var_os(CHILD).is_none() {
            let own = "torch::device::tests::numbers_that_stay_do_not_cost_a_fill_of_all_memory";
            let exe = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(exe);
            let done = child.args(["--exact", own]).env(CHILD, "1").status();
            assert!(done.unwrap().success());
            return;
        }
        ffi::set_numbers(false, true).unwrap();
        let size = [1 << 16];
        drop(Tensor::ones(size, (Kind::Float, Device::Cpu)));
        let memory = Tensor::empty(size, (Kind::Float, Device::Cpu));
        assert_eq!(memory.isnan().all().int64_value(&[]), 0);
    }

    /// A user who had installed with pip was told to run `make` in a clone that did not exist.
    #[test]
    fn what_to_install_is_what_brought_the_command() {
        let made = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = made.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            folder
        };
        let wheel = folder("site-packages/gpipe_rs");
        std::fs::write(wheel.join("__main__.py"), "").unwrap();
        assert!(full_libtorch(&wheel).contains("pip install --force-reinstall 'torch==2.11.*'"));
        let archive = folder("archive/bin");
        folder("archive/lib/torch/lib");
        assert!(full_libtorch(&archive).contains("the wheel in place of this archive"));
        let clone = folder("clone/target/release");
        assert!(full_libtorch(&clone).contains("TORCH=full make build"));
    }

    #[test]
    fn parses_devices_and_explains_what_it_cannot_parse() {
        assert_eq!(parse_devices("cpu"), Ok(vec![Device::Cpu]));
        let several = parse_devices("cuda:3,cuda:0-1*2");
        assert_eq!(several, Ok([3, 0, 0, 1, 1].map(Device::Cuda).to_vec()));
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
            let error = parse_devices(wrong).map_err(|e| e.to_string());
            assert!(
                error.is_err_and(|e| e.contains("`cpu` and `cuda:N`")),
                "{wrong}"
            );
        }
    }
}
