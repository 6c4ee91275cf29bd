//! The counting CPU allocator and the caching allocator of CUDA devices.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::{Result, c_number, check};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_memory_install() -> c_int;
    fn gp_memory_live(out: *mut i64) -> c_int;
    fn gp_account_new(whole: *mut c_void, out: *mut *mut c_void) -> c_int;
    fn gp_account_retire(account: *mut c_void);
    fn gp_account_enter(account: *mut c_void) -> *mut c_void;
    fn gp_account_current(account: *const c_void) -> i64;
    fn gp_account_peak(account: *const c_void) -> i64;
    fn gp_account_reset_peak(account: *mut c_void);
    fn gp_cuda_memory(index: c_int, current: *mut i64, peak: *mut i64) -> c_int;
    fn gp_cuda_reset_peak(index: c_int) -> c_int;
    fn gp_cuda_room(index: c_int, free: *mut i64, total: *mut i64) -> c_int;
    fn gp_cuda_limit(index: c_int, fraction: f64) -> c_int;
}

/// Installs the counting CPU allocator in libtorch; a second call does nothing.
pub(crate) fn install_counting() -> Result<()> {
    // SAFETY: nothing in, nothing out.
    check(unsafe { gp_memory_install() })
}

/// Fills a one-dimensional byte tensor with the bytes of another from `begin` on.
pub(crate) fn copy_bytes(from: &Tensor, begin: usize, into: &Tensor) -> Result<()> {
    let bytes = |tensor: &Tensor| {
        (tensor.kind(), tensor.device()) == (Kind::Uint8, Device::Cpu) && tensor.is_contiguous()
    };
    let count = into.numel();
    let fits = begin
        .checked_add(count)
        .is_some_and(|end| end <= from.numel());
    if !bytes(from) || !bytes(into) || !fits {
        return Err(TorchError::new(
            "bytes are not where they are copied from or to",
        ));
    }
    let (from, into) = (from.data_ptr().cast::<u8>(), into.data_ptr().cast::<u8>());
    // SAFETY: both are contiguous bytes in the host's memory, as many as were counted; where they
    // overlap, it is a copy all the same.
    unsafe { ptr::copy(from.add(begin), into, count) };
    Ok(())
}

/// Returns the bytes of all counted blocks.
pub(crate) fn live_bytes() -> Result<u64> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_memory_live(&raw mut out) })?;
    Ok(bytes(out))
}

/// One account of the counting allocator (see `shim/memory.cpp`).
#[derive(Debug)]
pub(crate) struct RawAccount {
    pointer: NonNull<c_void>,
    /// Parent account, charged with the same bytes and therefore kept alive as long.
    _whole: Option<Arc<RawAccount>>,
}

// SAFETY: accounts are never freed, and all that is done through the pointer is
// done with atomics or, at the end, under a mutex. The one plain field, the account
// that it is a part of, is written before the account is handed out, and after its
// last byte has been given back: release and acquire put these in order.
unsafe impl Send for RawAccount {}
// SAFETY: as above.
unsafe impl Sync for RawAccount {}

impl RawAccount {
    /// Makes an account whose bytes also count for `whole`.
    pub(crate) fn new(whole: Option<&Arc<RawAccount>>) -> Result<Self> {
        let parent = whole.map_or(ptr::null_mut(), |whole| whole.pointer.as_ptr());
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an account after a successful call; accounts live for ever.
        check(unsafe { gp_account_new(parent, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no account"))?;
        Ok(Self {
            pointer,
            _whole: whole.cloned(),
        })
    }

    pub(crate) fn current(&self) -> u64 {
        // SAFETY: accounts live for ever; the call reads an atomic.
        bytes(unsafe { gp_account_current(self.pointer.as_ptr()) })
    }

    pub(crate) fn peak(&self) -> u64 {
        // SAFETY: as above.
        bytes(unsafe { gp_account_peak(self.pointer.as_ptr()) })
    }

    pub(crate) fn reset_peak(&self) {
        // SAFETY: as above; the call writes an atomic.
        unsafe { gp_account_reset_peak(self.pointer.as_ptr()) }
    }
}

impl Drop for RawAccount {
    fn drop(&mut self) {
        // SAFETY: scopes hold the account, so none is open; it is retired once.
        unsafe { gp_account_retire(self.pointer.as_ptr()) }
    }
}

/// Scope in which this thread's allocations are charged to an account. The raw pointer keeps the
/// scope on the thread that opened it.
#[derive(Debug)]
pub(crate) struct RawScope {
    before: *mut c_void,
    /// The thread may charge the account until the scope ends.
    _account: Arc<RawAccount>,
}

impl RawScope {
    pub(crate) fn open(account: &Arc<RawAccount>) -> Self {
        Self {
            // SAFETY: the account outlives the scope, which holds it.
            before: unsafe { gp_account_enter(account.pointer.as_ptr()) },
            _account: Arc::clone(account),
        }
    }
}

impl Drop for RawScope {
    fn drop(&mut self) {
        // SAFETY: what the shim gave out; accounts are never freed.
        unsafe { gp_account_enter(self.before) };
    }
}

/// Returns the bytes that a CUDA device's caching allocator has handed out: now, and at most since
/// the peak was reset. The CUDA half of libtorch must be loaded.
pub(crate) fn cuda_memory(index: usize) -> Result<(u64, u64)> {
    let (mut current, mut peak) = (0, 0);
    // SAFETY: both places live through the call.
    check(unsafe { gp_cuda_memory(c_number(index), &raw mut current, &raw mut peak) })?;
    Ok((bytes(current), bytes(peak)))
}

/// Sets the peak of [`cuda_memory`] to the current bytes.
pub(crate) fn reset_cuda_peak(index: usize) -> Result<()> {
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_cuda_reset_peak(c_number(index)) })
}

/// Returns the free bytes of a CUDA device, over all processes, and its total.
pub(crate) fn cuda_room(index: usize) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both places live through the call.
    check(unsafe { gp_cuda_room(c_number(index), &raw mut free, &raw mut total) })?;
    Ok((bytes(free), bytes(total)))
}

/// Limits the caching allocator to this share of the device's memory.
pub(crate) fn limit_cuda(index: usize, fraction: f64) -> Result<()> {
    // SAFETY: plain values in, nothing out. The shim calls libtorch's allocator through a
    // mirror of its vtable, which a test compares with libtorch's own (see `ffi/mod.rs`).
    check(unsafe { gp_cuda_limit(c_number(index), fraction) })
}

/// Counts are negative only transiently, between two atomic updates.
fn bytes(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
