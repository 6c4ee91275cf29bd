//! Process and thread settings, devices.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use tch::Device;

use super::{Result, c_number, check};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_version() -> *const c_char;
    fn gp_mkl_mode(told: *mut c_int) -> c_int;
    fn gp_set_threads(count: c_int) -> c_int;
    fn gp_keep_memory();
    fn gp_end_at_once();
    fn gp_threads(out: *mut c_int) -> c_int;
    fn gp_load_cuda(path: *const c_char) -> c_int;
    fn gp_cuda_loaded() -> c_int;
    fn gp_simulates_gpus() -> c_int;
    fn gp_cuda_devices(out: *mut c_int) -> c_int;
    fn gp_forbid_waits(forbid: c_int) -> c_int;
    fn gp_numbers(tf32: c_int, deterministic: c_int) -> c_int;
    fn gp_set_cuda_device(index: c_int) -> c_int;
    fn gp_backward_here() -> c_int;
}

/// Returns the version of the loaded libtorch, such as `2.11.0`.
pub(crate) fn version() -> String {
    // SAFETY: a string literal of the shim.
    unsafe { CStr::from_ptr(gp_version()) }
        .to_string_lossy()
        .into_owned()
}

/// Returns MKL's mode of conditional numerical reproducibility, and whether the environment set it;
/// `None` if libtorch has no MKL.
pub(crate) fn mkl_mode() -> Option<(c_int, bool)> {
    let mut told = 0;
    // SAFETY: `told` lives through the call.
    let mode = unsafe { gp_mkl_mode(&raw mut told) };
    (mode >= 0).then_some((mode, told != 0))
}

/// Sets the intra-op threads of the calling thread.
pub(crate) fn set_threads(count: usize) -> Result<()> {
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_set_threads(c_number(count)) })
}

/// Makes the C library keep freed memory for later allocations.
pub(crate) fn keep_memory() {
    // SAFETY: nothing in, nothing out; the C library locks what it changes.
    unsafe { gp_keep_memory() }
}

/// Makes the process end without waiting for the destructors of libtorch's own tables.
pub fn end_at_once() {
    // SAFETY: nothing in, nothing out; what is registered needs nothing that may be gone by then.
    unsafe { gp_end_at_once() }
}

/// Returns the intra-op threads of the calling thread.
pub(crate) fn threads() -> Result<usize> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_threads(&raw mut out) })?;
    Ok(usize::try_from(out).unwrap_or(1))
}

/// Loads `libtorch_cuda` from `path` into the process.
pub(crate) fn load_cuda(path: &Path) -> Result<()> {
    let path = CString::new(path.to_string_lossy().as_bytes())
        .map_err(|_| TorchError::new("the path of libtorch_cuda holds a NUL byte"))?;
    // SAFETY: a NUL-terminated string that lives through the call.
    check(unsafe { gp_load_cuda(path.as_ptr()) })
}

/// Returns whether the environment requests simulated GPUs (`GPIPE_SIMULATE_GPUS`), which replace
/// `libtorch_cuda` and the driver.
pub(crate) fn simulates_gpus() -> bool {
    // SAFETY: nothing in, a number out.
    unsafe { gp_simulates_gpus() != 0 }
}

/// Returns whether `libtorch_cuda` is loaded.
pub(crate) fn cuda_loaded() -> bool {
    // SAFETY: nothing in, a number out.
    unsafe { gp_cuda_loaded() != 0 }
}

/// Sets, for the whole process, whether matrix products and convolutions of CUDA devices may round
/// single precision to TF32, and whether only operators with reproducible results are used.
#[doc(alias = "allow_tf32")]
#[doc(alias = "use_deterministic_algorithms")]
pub(crate) fn set_numbers(tf32: bool, deterministic: bool) -> Result<()> {
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_numbers(c_int::from(tf32), c_int::from(deterministic)) })
}

/// Sets, for the whole process, whether an operator that makes the host wait for a CUDA device is
/// an error; `libtorch_cuda` must be loaded.
#[doc(alias = "set_sync_debug_mode")]
pub(crate) fn forbid_waits(forbid: bool) -> Result<()> {
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_forbid_waits(c_int::from(forbid)) })
}

/// Returns how many CUDA devices libtorch can use; 0 if `libtorch_cuda` is not loaded.
pub(crate) fn cuda_devices() -> Result<usize> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_cuda_devices(&raw mut out) })?;
    Ok(usize::try_from(out).unwrap_or(0))
}

/// Makes a CUDA device current for the calling thread; does nothing for the CPU.
pub(crate) fn set_current_device(device: Device) -> Result<()> {
    let Device::Cuda(index) = device else {
        return Ok(());
    };
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_set_cuda_device(c_number(index)) })
}

/// Makes backwards started by the calling thread run on it, including those of CUDA devices.
pub(crate) fn backward_here() -> Result<()> {
    // SAFETY: nothing in, nothing out.
    check(unsafe { gp_backward_here() })
}
