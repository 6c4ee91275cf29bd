//! The bytes of tensors, counted by account.
//!
//! On the CPU an allocator under libtorch counts. It charges a thread's allocations to the
//! [`Account`] that the thread has entered, and credits that account when the memory is freed, on
//! any thread:
//!
//! ```
//! use gpipe::memory::Account;
//! use gpipe::tch::{Device, Kind, Tensor};
//!
//! let account = Account::new()?;
//! let scope = account.enter();
//! let x = Tensor::zeros([1024], (Kind::Float, Device::Cpu));
//! let y = x.exp().relu();
//! drop(scope);
//! assert_eq!(account.current(), 2 * 4096);
//! assert_eq!(account.peak(), 3 * 4096);
//! std::thread::spawn(|| drop(y)).join().unwrap();
//! assert_eq!(account.current(), 4096);
//! # drop(x);
//! # Ok::<(), gpipe::error::TorchError>(())
//! ```
//!
//! The bytes that libtorch asks for are counted, without padding. Allocations by libtorch's
//! intra-op threads inside of a kernel, and those made before the first account existed, are on no
//! account.
//!
//! On CUDA devices the caching allocator counts, see [`of_device`].

mod host;

use std::path::Path;
use std::sync::Arc;

use gpipe_partitioner::Bytes;
use tch::Device;

use super::device;
use super::error::TorchError;
use super::ffi::{self, RawAccount, RawScope};

/// Starts counting, for the rest of the process; does nothing the second time.
///
/// [`Account::new`] calls it. If called before tensors are made, it includes their bytes in
/// [`live`]. From then on each block takes up to 192 bytes more.
///
/// # Errors
/// The process has given libtorch a CPU allocator of its own.
pub fn install() -> Result<(), TorchError> {
    ffi::install_counting()
}

/// Bytes of all CPU tensors that were allocated since [`install`] and live still,
/// on any account or none.
///
/// # Errors
/// [`install`] fails.
pub fn live() -> Result<u64, TorchError> {
    install()?;
    ffi::live_bytes()
}

/// An account that CPU tensors are charged to. Clones are the same account.
///
/// Accounts are cheap: the next one takes the place of one that is dropped and
/// has no bytes left on it.
#[doc(alias = "allocator")]
#[derive(Debug, Clone)]
pub struct Account {
    raw: Arc<RawAccount>,
}

impl Account {
    /// An account with nothing on it.
    ///
    /// # Errors
    /// [`install`] fails.
    pub fn new() -> Result<Self, TorchError> {
        install()?;
        let raw = Arc::new(RawAccount::new(None)?);
        Ok(Self { raw })
    }

    /// An account with nothing on it, whose bytes will be on `whole` as well.
    ///
    /// # Errors
    /// None that is known: [`install`] has succeeded before.
    pub fn part_of(whole: &Self) -> Result<Self, TorchError> {
        let raw = Arc::new(RawAccount::new(Some(&whole.raw))?);
        Ok(Self { raw })
    }

    /// Charges the calling thread's allocations to this account while the result lives. Scopes
    /// nest, and must end in the reverse order.
    ///
    /// ```compile_fail
    /// let scope = gpipe::memory::Account::new().unwrap().enter();
    /// std::thread::spawn(move || drop(scope)); // belongs to the thread that entered
    /// ```
    pub fn enter(&self) -> Scope {
        Scope {
            _raw: RawScope::open(&self.raw),
        }
    }

    /// Bytes on the account now.
    pub fn current(&self) -> u64 {
        self.raw.current()
    }

    /// The most bytes that were on the account at once since the account was made
    /// or [`Account::reset_peak`] was called.
    pub fn peak(&self) -> u64 {
        self.raw.peak()
    }

    /// Resets the peak to the present bytes.
    pub fn reset_peak(&self) {
        self.raw.reset_peak();
    }
}

/// A stretch of code whose CPU tensors are charged to an account; see [`Account::enter`].
#[derive(Debug)]
#[must_use = "the account is charged only while this lives"]
pub struct Scope {
    _raw: RawScope,
}

/// Bytes of tensors on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Bytes in tensors now, rounded as the caching allocator does to multiples of 512.
    pub current: u64,
    /// Highest such value since the last [`reset_device_peak`].
    pub peak: u64,
}

/// The bytes that the caching allocator of a CUDA device has handed out, for all threads and
/// purposes together.
#[doc(alias = "max_memory_allocated")]
///
/// # Errors
/// There is no such device, or it is the CPU, where [`Account`] counts.
pub fn of_device(device: Device) -> Result<DeviceMemory, TorchError> {
    let (current, peak) = ffi::cuda_memory(cuda_index(device)?)?;
    Ok(DeviceMemory { current, peak })
}

/// Resets the device's peak to its present bytes.
#[doc(alias = "reset_peak_memory_stats")]
///
/// # Errors
/// As [`of_device`].
pub fn reset_device_peak(device: Device) -> Result<(), TorchError> {
    ffi::reset_cuda_peak(cuda_index(device)?)
}

/// Returns the bytes of memory that programs can still get on a device, and its total.
///
/// For the CPU, the smallest of the limits of the machine, of the process's control groups (those
/// of a container, for example) and of the process itself.
///
/// # Errors
/// There is no such device, or the system does not tell.
pub fn room_on(device: Device) -> Result<(Bytes, Bytes), TorchError> {
    if device == Device::Cpu {
        return host::room(Path::new("/"))
            .ok_or_else(|| TorchError::new("the system does not tell how much memory is free"));
    }
    let (free, total) = ffi::cuda_room(cuda_index(device)?)?;
    Ok((Bytes(free), Bytes(total)))
}

/// Limits the caching allocator of a CUDA device, for the whole process, as if the device had no
/// more memory.
#[doc(alias = "set_per_process_memory_fraction")]
///
/// # Errors
/// There is no such device, it has less memory, or it is the CPU, which has no such
/// limit.
pub fn limit_device(device: Device, limit: Bytes) -> Result<(), TorchError> {
    let index = cuda_index(device)?;
    let (_, total) = room_on(device)?;
    if limit > total || limit == Bytes(0) {
        return Err(TorchError::new(format!(
            "a limit of {limit} for `cuda:{index}`, which has {total}: give one between"
        )));
    }
    ffi::limit_cuda(index, limit.0 as f64 / total.0 as f64)
}

fn cuda_index(device: Device) -> Result<usize, TorchError> {
    device::prepare(&[device])?;
    match device {
        Device::Cuda(index) => Ok(index),
        _ => Err(TorchError::new(
            "the CPU has no caching allocator to ask: count with a memory account instead",
        )),
    }
}

#[cfg(test)]
mod tests;
