//! How many bytes tensors take, by who made them.
//!
//! On the CPU an allocator under libtorch counts. It charges what a thread
//! allocates to the [`Account`] that the thread has entered, and gives it back to
//! that account when the memory is freed, whoever frees it on whatever thread:
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
//! # Ok::<(), gpipe::TorchError>(())
//! ```
//!
//! Counted are the bytes that libtorch asks for, without padding. What libtorch's
//! own intra-op threads allocate inside of a kernel is on nobody's account, and so
//! is what was allocated before the first account existed.
//!
//! CUDA devices need no help: their caching allocator keeps the books, see
//! [`of_device`].

use std::sync::Arc;

use gpipe_partitioner::Bytes;
use tch::Device;

use super::device;
use super::error::TorchError;
use super::ffi::{self, RawAccount, RawScope};

/// Starts counting, for the rest of the process; nothing the second time.
///
/// [`Account::new`] does it by itself. Doing it before tensors are made has their
/// bytes in [`live`]. Each block takes up to 192 bytes more from then on.
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

/// Somebody whose CPU tensors are counted. Clones are the same account.
///
/// Accounts are cheap: the next one takes the place of one that is dropped and
/// has no bytes left on it.
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

    /// Charges this account with what the calling thread allocates while the
    /// result lives. Scopes nest, and must end in the reverse order.
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

    /// The peak counts from the present bytes again.
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
    /// In tensors now, in the caching allocator's own steps of 512 bytes.
    pub current: u64,
    /// In tensors at once at most, since the last [`reset_device_peak`].
    pub peak: u64,
}

/// What the caching allocator of a CUDA device has handed out, by all threads and
/// for all purposes together.
///
/// # Errors
/// There is no such device, or it is the CPU, where [`Account`] counts.
pub fn of_device(device: Device) -> Result<DeviceMemory, TorchError> {
    let (current, peak) = ffi::cuda_memory(cuda_index(device)?)?;
    Ok(DeviceMemory { current, peak })
}

/// The device's peak counts from its present bytes again.
///
/// # Errors
/// As [`of_device`].
pub fn reset_device_peak(device: Device) -> Result<(), TorchError> {
    ffi::reset_cuda_peak(cuda_index(device)?)
}

/// Bytes of memory that programs can still get on a device, and that it has.
///
/// # Errors
/// There is no such device, or the system does not tell.
pub fn room_on(device: Device) -> Result<(Bytes, Bytes), TorchError> {
    if device == Device::Cpu {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = |name| host_bytes(&text, name);
        return line("MemAvailable:")
            .zip(line("MemTotal:"))
            .ok_or_else(|| TorchError::new("the system does not tell how much memory is free"));
    }
    let (free, total) = ffi::cuda_room(cuda_index(device)?)?;
    Ok((Bytes(free), Bytes(total)))
}

/// Has the caching allocator of a CUDA device refuse to hold more than `limit`, for the
/// whole process, as if the device had no more.
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

fn host_bytes(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(Bytes(kibibytes * 1024))
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
mod tests {
    use super::*;
    use std::thread;
    use tch::{Kind, Tensor};

    const KIB: u64 = 1024;

    /// A tensor of so many KiB.
    fn kib(count: u64) -> Tensor {
        Tensor::ones([(count * KIB) as i64], (Kind::Uint8, Device::Cpu))
    }

    #[test]
    fn bytes_go_up_and_down_exactly_and_only_inside_of_the_scope() {
        let account = Account::new().unwrap();
        let before = kib(1);
        let scope = account.enter();
        let (x, y) = (kib(3), Tensor::from_slice(&[1.0_f32, 2.0, 3.0]));
        let view = x.slice(0, 10, 20, 1);
        assert_eq!(account.current(), 3 * KIB + 12);
        drop(scope);
        let after = kib(5);
        assert_eq!(account.current(), 3 * KIB + 12);
        drop((x, before, after));
        assert_eq!(account.current(), 3 * KIB + 12, "a view holds all of it");
        drop((view, y));
        assert_eq!(account.current(), 0);
    }

    #[test]
    fn the_innermost_scope_is_charged() {
        let (outer, inner) = (Account::new().unwrap(), Account::new().unwrap());
        let _outer = outer.enter();
        let scope = inner.enter();
        let x = kib(1);
        drop(scope);
        let y = kib(2);
        assert_eq!((outer.current(), inner.current()), (2 * KIB, KIB));
        drop((x, y));
    }

    #[test]
    fn the_peak_is_what_was_there_at_once() {
        let account = Account::new().unwrap();
        let _scope = account.enter();
        let x = kib(2);
        drop(kib(5));
        drop(kib(4));
        assert_eq!((account.current(), account.peak()), (2 * KIB, 7 * KIB));
        account.reset_peak();
        assert_eq!(account.peak(), 2 * KIB);
        drop(x);
        assert_eq!(account.peak(), 2 * KIB);
    }

    #[test]
    fn memory_freed_by_another_thread_comes_off_its_account() {
        let account = Account::new().unwrap();
        let scope = account.enter();
        let (x, y) = (kib(1), kib(2));
        drop(scope);
        let other = Account::new().unwrap();
        let theirs = other.clone();
        thread::spawn(move || {
            let _scope = theirs.enter();
            let z = kib(4);
            drop(x);
            z
        })
        .join()
        .map(|z| assert_eq!(other.current(), z.numel() as u64))
        .unwrap();
        assert_eq!((account.current(), other.current()), (2 * KIB, 0));
        drop(y);
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing() {
        let account = Account::new().unwrap();
        let threads = (0..4).map(|_| {
            let account = account.clone();
            thread::spawn(move || {
                let _scope = account.enter();
                (0..200).for_each(|_| drop(kib(1)));
                kib(2)
            })
        });
        let threads: Vec<_> = threads.collect();
        let kept: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(account.current(), 8 * KIB);
        assert!(account.peak() >= 8 * KIB && account.peak() <= 4 * 3 * KIB);
        drop(kept);
        assert_eq!(account.current(), 0);
    }

    #[test]
    fn a_copy_on_write_is_charged_when_it_is_made_and_to_who_writes() {
        let (account, writer) = (Account::new().unwrap(), Account::new().unwrap());
        let scope = account.enter();
        let x = kib(1);
        let mut copy = x.internal_lazy_clone();
        assert_eq!(account.current(), KIB, "nothing is copied yet");
        drop(scope);
        let scope = writer.enter();
        let _ = copy.fill_(2);
        drop(scope);
        assert_eq!((account.current(), writer.current()), (KIB, KIB));
        assert_eq!(x.sum(Kind::Int64).int64_value(&[]), 1024);
        drop(x);
        assert_eq!((account.current(), writer.current()), (0, KIB));
        drop(copy);
        assert_eq!(writer.current(), 0);
    }

    #[test]
    fn a_part_is_on_the_whole_too() {
        let whole = Account::new().unwrap();
        let (one, two) = (Account::part_of(&whole), Account::part_of(&whole));
        let (one, two) = (one.unwrap(), two.unwrap());
        let scope = one.enter();
        let x = kib(2);
        drop(kib(3));
        drop(scope);
        let scope = two.enter();
        let y = kib(4);
        drop(scope);
        assert_eq!((one.current(), two.current()), (2 * KIB, 4 * KIB));
        assert_eq!((whole.current(), whole.peak()), (6 * KIB, 6 * KIB));
        assert_eq!((one.peak(), two.peak()), (5 * KIB, 4 * KIB));
        drop(one);
        drop(x);
        assert_eq!(whole.current(), 4 * KIB);
        drop(y);
        assert_eq!((whole.current(), two.current()), (0, 0));
    }

    #[test]
    fn a_hundred_repeats_leave_the_level_where_it_was() {
        let account = Account::new().unwrap();
        let _scope = account.enter();
        let weight = Tensor::randn([32, 32], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let step = || {
            let x = Tensor::randn([64, 32], (Kind::Float, Device::Cpu));
            // Kernels that take scratch memory in several ways.
            let y = x.matmul(&weight).gelu("none").softmax(-1, Kind::Float);
            let mut y = y.internal_lazy_clone().dropout(0.1, true);
            y = y.layer_norm([32], None::<Tensor>, None::<Tensor>, 1e-5, false);
            y.square().sum(Kind::Float).backward();
        };
        // The first leaves the gradient that the second adds to.
        (0..2).for_each(|_| step());
        let (level, peak) = (account.current(), account.peak());
        (0..100).for_each(|_| step());
        assert_eq!((account.current(), account.peak()), (level, peak));
    }

    #[test]
    fn accounts_are_used_again_once_dropped_and_empty() {
        let places = || {
            let place = |account: &Account| format!("{:?}", account.raw);
            let (one, two) = (Account::new().unwrap(), Account::new().unwrap());
            (place(&one), place(&two))
        };
        let many: std::collections::HashSet<_> = (0..1000).map(|_| places()).collect();
        // Other tests hold and drop accounts at the same time.
        assert!(many.len() < 200, "{}", many.len());
        let account = Account::new().unwrap();
        let scope = account.enter();
        let x = kib(1);
        drop(scope);
        let place = format!("{:?}", account.raw);
        drop(account);
        let others: Vec<_> = (0..50).map(|_| Account::new().unwrap()).collect();
        for other in &others {
            assert_ne!(format!("{:?}", other.raw), place, "it has bytes still");
            assert_eq!((other.current(), other.peak()), (0, 0));
        }
        assert!(live().unwrap() >= KIB);
        drop(x);
    }

    #[test]
    fn the_host_tells_its_room() {
        let text = "MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:      50 kB\n";
        assert_eq!(host_bytes(text, "MemAvailable:"), Some(Bytes(50 * KIB)));
        assert_eq!(host_bytes("nothing", "MemTotal:"), None);
        let (free, total) = room_on(Device::Cpu).unwrap();
        assert!(free <= total && free > Bytes(0));
    }

    /// What sets the limit calls a virtual function by its place in the class.
    #[test]
    fn the_class_of_the_cuda_allocator_begins_as_it_did() {
        let header = concat!(env!("LIBTORCH"), "/include/c10/cuda/CUDACachingAllocator.h");
        let text = std::fs::read_to_string(header).unwrap();
        let class = text
            .split("class CUDAAllocator : public DeviceAllocator {")
            .nth(1)
            .unwrap();
        let functions: Vec<_> = class
            .split("virtual ")
            .skip(1)
            .take(6)
            .map(|function| function.split('(').next().unwrap())
            .collect();
        let expected = [
            "void* raw_alloc",
            "void* raw_alloc_with_stream",
            "void raw_delete",
            "void init",
            "double getMemoryFraction",
            "void setMemoryFraction",
        ];
        assert_eq!(functions, expected);
    }

    #[test]
    fn the_cpu_has_no_caching_allocator() {
        let error = of_device(Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("memory account"), "{error}");
        assert!(reset_device_peak(Device::Cpu).is_err());
        assert!(limit_device(Device::Cpu, Bytes(1)).is_err());
        assert!(of_device(Device::Cuda(1000)).is_err());
    }
}
