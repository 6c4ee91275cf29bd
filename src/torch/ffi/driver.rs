//! Queries to the NVIDIA driver (see `shim/driver.cpp`).

use std::ffi::{CStr, c_char, c_int};

use super::{Result, c_number, check};

unsafe extern "C" {
    fn gp_driver(version: *mut c_int, devices: *mut c_int) -> c_int;
    fn gp_driver_device(
        index: c_int,
        name: *mut c_char,
        room: c_int,
        bytes: *mut u64,
        major: *mut c_int,
        minor: *mut c_int,
    ) -> c_int;
    fn gp_driver_uuid(index: c_int, out: *mut u8) -> c_int;
    fn gp_driver_peers(from: c_int, to: c_int, out: *mut c_int) -> c_int;
    fn gp_cuda_version(version: *mut c_int) -> c_int;
}

/// Returns the newest CUDA that the driver can run, and the number of devices.
pub(crate) fn driver() -> Result<(String, usize)> {
    let (mut version, mut devices) = (0, 0);
    // SAFETY: both places live through the call.
    check(unsafe { gp_driver(&raw mut version, &raw mut devices) })?;
    Ok((dotted(version), usize::try_from(devices).unwrap_or(0)))
}

/// Returns a device's name, bytes of memory and compute capability.
pub(crate) fn driver_device(index: usize) -> Result<(String, u64, String)> {
    const ROOM: usize = 256;
    let mut name: [c_char; ROOM] = [0; ROOM];
    let (mut bytes, mut major, mut minor) = (0, 0, 0);
    // SAFETY: every place lives through the call, and the name's has room for as many
    // bytes as is said, less one so that there is a zero behind it in any case.
    let name = unsafe {
        check(gp_driver_device(
            c_number(index),
            name.as_mut_ptr(),
            ROOM as c_int - 1,
            &raw mut bytes,
            &raw mut major,
            &raw mut minor,
        ))?;
        CStr::from_ptr(name.as_ptr())
    };
    let name = name.to_string_lossy().into_owned();
    Ok((name, bytes, format!("{major}.{minor}")))
}

/// Returns the UUID of a device, the same in all processes.
pub(crate) fn driver_uuid(index: usize) -> Result<[u8; 16]> {
    let mut out = [0; 16];
    // SAFETY: the shim writes so many bytes.
    check(unsafe { gp_driver_uuid(c_number(index), out.as_mut_ptr()) })?;
    Ok(out)
}

/// Returns whether one device can access another's memory directly (peer access).
pub(crate) fn driver_peers(from: usize, to: usize) -> Result<bool> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_driver_peers(c_number(from), c_number(to), &raw mut out) })?;
    Ok(out != 0)
}

/// Returns the CUDA version that libtorch was built with; `libtorch_cuda` must be loaded.
pub(crate) fn cuda_version() -> Result<String> {
    let mut version = 0;
    // SAFETY: `version` lives through the call.
    check(unsafe { gp_cuda_version(&raw mut version) })?;
    Ok(dotted(version))
}

/// CUDA encodes version 13.0 as 13000.
fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
