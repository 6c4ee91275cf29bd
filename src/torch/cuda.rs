//! The CUDA devices, driver and libraries of this machine, and what is missing.

use gpipe_partitioner::Bytes;
use serde::Serialize;
use tch::Device;

use super::device::{cuda_available, simulated_gpus};
use super::ffi;
use super::memory;

/// A CUDA device as its driver and libtorch describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CudaDevice {
    /// Name in this process: `cuda:0`, ….
    pub device: String,
    /// Product name.
    pub name: String,
    /// Compute capability, such as `9.0`.
    pub compute_capability: String,
    /// Total memory.
    pub memory: Bytes,
    /// Free memory; `None` if libtorch does not tell.
    pub free: Option<Bytes>,
    /// Devices whose memory it can access directly (peer access).
    pub peers: Vec<String>,
}

/// The CUDA devices, driver and libraries of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CudaReport {
    /// The newest CUDA that the NVIDIA driver can run; `None` without a driver.
    pub driver: Option<String>,
    /// The CUDA version that libtorch was built with; `None` without its CUDA half.
    pub libtorch_cuda: Option<String>,
    /// The devices that pipelines can use.
    pub devices: Vec<CudaDevice>,
    /// Settings of the simulated GPUs, if they replace CUDA's devices.
    pub simulated: Option<String>,
    /// Missing requirement, with advice; `None` if devices can be used.
    pub missing: Option<String>,
}

impl CudaReport {
    /// Collects the report. Loads the CUDA half of libtorch, if it exists.
    pub fn new() -> Self {
        let usable = cuda_available();
        let driver = ffi::driver();
        let count = usable.as_ref().map_or(0, |count| *count);
        Self {
            driver: driver.ok().map(|(version, _)| version),
            // With simulated GPUs the CUDA half is not loaded.
            libtorch_cuda: (ffi::cuda_loaded() && !ffi::simulates_gpus())
                .then(ffi::cuda_version)
                .and_then(Result::ok),
            devices: (0..count)
                .filter_map(|index| describe(index, count))
                .collect(),
            simulated: simulated_gpus(),
            missing: usable.err().map(|why| why.to_string()),
        }
    }
}

impl Default for CudaReport {
    fn default() -> Self {
        Self::new()
    }
}

fn describe(index: usize, count: usize) -> Option<CudaDevice> {
    let (name, bytes, compute_capability) = ffi::driver_device(index).ok()?;
    let reaches = |other: &usize| *other != index && ffi::driver_peers(index, *other) == Ok(true);
    let room = memory::room_on(Device::Cuda(index)).ok();
    Some(CudaDevice {
        device: format!("cuda:{index}"),
        name,
        compute_capability,
        memory: Bytes(bytes),
        free: room.map(|(free, _)| free),
        peers: (0..count)
            .filter(reaches)
            .map(|other| format!("cuda:{other}"))
            .collect(),
    })
}
