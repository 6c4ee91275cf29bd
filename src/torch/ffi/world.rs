//! c10d of libtorch: the store shared by processes, and groups that send tensors (see
//! `shim/world.cpp`).

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::time::Duration;

use tch::Tensor;

use super::{Result, c_number, check, lend};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_store_open(
        host: *const c_char,
        port: u16,
        serves: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_store_clone(store: *const c_void, out: *mut *mut c_void) -> c_int;
    fn gp_store_prefix(store: *const c_void, prefix: *const c_char, out: *mut *mut c_void)
    -> c_int;
    #[cfg(test)]
    fn gp_store_port(store: *const c_void, out: *mut u16) -> c_int;
    fn gp_store_set(store: *const c_void, key: *const c_char, value: *const u8, size: i64)
    -> c_int;
    fn gp_store_get(store: *const c_void, key: *const c_char, out: *mut *mut c_void) -> c_int;
    fn gp_store_wait(
        store: *const c_void,
        keys: *const *const c_char,
        count: i64,
        timeout_ms: i64,
        came: *mut c_int,
    ) -> c_int;
    fn gp_store_check(
        store: *const c_void,
        keys: *const *const c_char,
        count: i64,
        out: *mut c_int,
    ) -> c_int;
    fn gp_store_add(store: *const c_void, key: *const c_char, amount: i64, out: *mut i64) -> c_int;
    fn gp_store_set_first(
        store: *const c_void,
        key: *const c_char,
        value: *const u8,
        size: i64,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_store_remove(store: *const c_void, key: *const c_char) -> c_int;
    #[cfg(any(test, feature = "testing"))]
    fn gp_store_count(store: *const c_void, out: *mut i64) -> c_int;
    fn gp_store_free(store: *mut c_void);
    fn gp_text_data(text: *const c_void) -> *const u8;
    fn gp_text_size(text: *const c_void) -> i64;
    fn gp_text_free(text: *mut c_void);
    fn gp_group_new(
        store: *const c_void,
        rank: c_int,
        size: c_int,
        address: *const c_char,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_group_send(
        group: *const c_void,
        tensor: *const c_void,
        to: c_int,
        tag: c_int,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_group_recv(
        group: *const c_void,
        tensor: *const c_void,
        from: c_int,
        tag: c_int,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_group_free(group: *mut c_void);
    fn gp_work_wait(work: *const c_void, timeout_ms: i64, done: *mut c_int) -> c_int;
    fn gp_work_abort(work: *const c_void) -> c_int;
    fn gp_work_free(work: *mut c_void);
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| TorchError::new("a text for c10d has a zero byte in it"))
}

fn milliseconds(time: Duration) -> i64 {
    // c10d adds it to the time of day in nanoseconds: a year does not overflow.
    const LONGEST: Duration = Duration::from_hours(24 * 365);
    time.min(LONGEST).as_millis() as i64
}

/// An object that the shim has made.
fn made(pointer: *mut c_void) -> Result<NonNull<c_void>> {
    NonNull::new(pointer).ok_or_else(|| TorchError::new("c10d has made nothing"))
}

/// Takes text returned by the shim; frees it.
///
/// # Safety
/// `pointer` must come from a call of the shim that succeeded, and be owned by nobody.
unsafe fn taken(pointer: *mut c_void) -> Result<Vec<u8>> {
    let pointer = made(pointer)?.as_ptr();
    // SAFETY: the caller's promise; the bytes are copied before they are freed, once.
    unsafe {
        let size = gp_text_size(pointer) as usize;
        let bytes = std::slice::from_raw_parts(gp_text_data(pointer), size).to_vec();
        gp_text_free(pointer);
        Ok(bytes)
    }
}

/// A connection to the store of a run. Calls through one connection wait for each other.
#[derive(Debug)]
pub(crate) struct Store {
    pointer: NonNull<c_void>,
}

// SAFETY: the object is reference-counted with atomics, and c10d's store locks its connection
// around each call.
unsafe impl Send for Store {}
// SAFETY: as for `Send`.
unsafe impl Sync for Store {}

impl Store {
    /// Connects to the store at this address; `serves` says that this process is to serve it.
    /// The time is the longest that the connection and each later call may take, but for
    /// [`wait`](Self::wait).
    pub(crate) fn open(host: &str, port: u16, serves: bool, timeout: Duration) -> Result<Self> {
        let host = text(host)?;
        let mut out = ptr::null_mut();
        let timeout = milliseconds(timeout);
        // SAFETY: the text lives through the call; `out` holds an owned store after success.
        check(unsafe {
            gp_store_open(
                host.as_ptr(),
                port,
                c_int::from(serves),
                timeout,
                &raw mut out,
            )
        })?;
        Ok(Self {
            pointer: made(out)?,
        })
    }

    /// Opens another connection to the same store.
    pub(crate) fn another(&self) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: the store is alive; `out` holds an owned store after success.
        check(unsafe { gp_store_clone(self.pointer.as_ptr(), &raw mut out) })?;
        Ok(Self {
            pointer: made(out)?,
        })
    }

    /// Returns a view through the same connection that puts `prefix` and a slash before each key.
    pub(crate) fn below(&self, prefix: &str) -> Result<Self> {
        let prefix = text(prefix)?;
        let mut out = ptr::null_mut();
        // SAFETY: as in `open`.
        check(unsafe { gp_store_prefix(self.pointer.as_ptr(), prefix.as_ptr(), &raw mut out) })?;
        Ok(Self {
            pointer: made(out)?,
        })
    }

    /// The port that it is reached at: for a server that was given port 0.
    #[cfg(test)]
    pub(crate) fn port(&self) -> Result<u16> {
        let mut port = 0;
        // SAFETY: the store is alive, and the place lives through the call.
        check(unsafe { gp_store_port(self.pointer.as_ptr(), &raw mut port) })?;
        Ok(port)
    }

    /// Sets a key; returns before the server has it.
    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = text(key)?;
        let (value, size) = (value.as_ptr(), value.len() as i64);
        // SAFETY: key and value live through the call, and `size` is the value's.
        check(unsafe { gp_store_set(self.pointer.as_ptr(), key.as_ptr(), value, size) })
    }

    /// The value of a key; waits for it.
    pub(crate) fn get(&self, key: &str) -> Result<Vec<u8>> {
        let key = text(key)?;
        let mut out = ptr::null_mut();
        // SAFETY: the key lives through the call; `out` holds an owned text after success.
        unsafe {
            check(gp_store_get(
                self.pointer.as_ptr(),
                key.as_ptr(),
                &raw mut out,
            ))?;
            taken(out)
        }
    }

    /// Waits until all keys exist. *Returns* whether they did in time.
    pub(crate) fn wait(&self, keys: &[String], timeout: Duration) -> Result<bool> {
        let keys = Keys::new(keys)?;
        let (mut came, timeout) = (0, milliseconds(timeout));
        let (pointers, count) = keys.lent();
        // SAFETY: the keys live through the call, `count` of them.
        check(unsafe {
            gp_store_wait(
                self.pointer.as_ptr(),
                pointers,
                count,
                timeout,
                &raw mut came,
            )
        })?;
        Ok(came != 0)
    }

    /// Returns whether all keys exist.
    pub(crate) fn has(&self, keys: &[String]) -> Result<bool> {
        let keys = Keys::new(keys)?;
        let (pointers, count) = keys.lent();
        let mut out = 0;
        // SAFETY: as in `wait`.
        check(unsafe { gp_store_check(self.pointer.as_ptr(), pointers, count, &raw mut out) })?;
        Ok(out != 0)
    }

    /// Adds to a number, which is 0 before, and returns it.
    pub(crate) fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let key = text(key)?;
        let mut out = 0;
        // SAFETY: the key and the place live through the call.
        check(unsafe { gp_store_add(self.pointer.as_ptr(), key.as_ptr(), amount, &raw mut out) })?;
        Ok(out)
    }

    /// Sets a key that has no value yet. *Returns* its value afterwards: this one, or that of the
    /// first process that set it.
    #[doc(alias = "compare_set")]
    pub(crate) fn set_first(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        let key = text(key)?;
        let (value, size) = (value.as_ptr(), value.len() as i64);
        let mut out = ptr::null_mut();
        // SAFETY: as in `set` and `get`.
        unsafe {
            check(gp_store_set_first(
                self.pointer.as_ptr(),
                key.as_ptr(),
                value,
                size,
                &raw mut out,
            ))?;
            taken(out)
        }
    }

    /// Removes a key, if it exists.
    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        let key = text(key)?;
        // SAFETY: the key lives through the call.
        check(unsafe { gp_store_remove(self.pointer.as_ptr(), key.as_ptr()) })
    }

    /// Returns the number of keys, with any prefix.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count(&self) -> Result<i64> {
        let mut out = 0;
        // SAFETY: the store is alive, and the place lives through the call.
        check(unsafe { gp_store_count(self.pointer.as_ptr(), &raw mut out) })?;
        Ok(out)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_store_free(self.pointer.as_ptr()) }
    }
}

/// Keys as C has them.
struct Keys {
    pointers: Vec<*const c_char>,
    _own: Vec<CString>,
}

impl Keys {
    fn new(keys: &[String]) -> Result<Self> {
        let own = keys
            .iter()
            .map(|key| text(key))
            .collect::<Result<Vec<_>>>()?;
        // A `CString` has its bytes on the heap: they stay where they are when it moves.
        let pointers = own.iter().map(|key| key.as_ptr()).collect();
        Ok(Self {
            pointers,
            _own: own,
        })
    }

    fn lent(&self) -> (*const *const c_char, i64) {
        (self.pointers.as_ptr(), self.pointers.len() as i64)
    }
}

/// Processes that send each other tensors.
#[derive(Debug)]
pub(crate) struct Group {
    pointer: NonNull<c_void>,
}

// SAFETY: the object is reference-counted with atomics, and gloo's sends and receives may be
// posted by several threads at a time.
unsafe impl Send for Group {}
// SAFETY: as for `Send`.
unsafe impl Sync for Group {}

impl Group {
    /// Joins the group of `size` processes that meet under the keys of this store; returns once
    /// all of them are connected with each other. `address` is the one of this host's that the
    /// others reach; without it the variable `GLOO_SOCKET_IFNAME` or the host's name says.
    pub(crate) fn join(
        store: &Store,
        rank: usize,
        size: usize,
        address: Option<IpAddr>,
        timeout: Duration,
    ) -> Result<Self> {
        let address = address
            .map(|address| text(&address.to_string()))
            .transpose()?;
        let address = address
            .as_ref()
            .map_or(ptr::null(), |address| address.as_ptr());
        let (rank, size) = (c_number(rank), c_number(size));
        let timeout = milliseconds(timeout);
        let mut out = ptr::null_mut();
        // SAFETY: store and text live through the call; `out` holds an owned group after success.
        check(unsafe {
            gp_group_new(
                store.pointer.as_ptr(),
                rank,
                size,
                address,
                timeout,
                &raw mut out,
            )
        })?;
        Ok(Self {
            pointer: made(out)?,
        })
    }

    /// Begins to send a contiguous CPU tensor, which must not change before its end.
    pub(crate) fn send(&self, tensor: &Tensor, to: usize, tag: u32) -> Result<Work> {
        let (to, tag) = (c_number(to), c_number(tag as usize));
        let mut out = ptr::null_mut();
        // SAFETY: group and tensor are alive; `out` holds an owned work after success.
        check(unsafe {
            gp_group_send(self.pointer.as_ptr(), lend(tensor), to, tag, &raw mut out)
        })?;
        Work::new(out, tensor)
    }

    /// Begins to receive into a contiguous CPU tensor, which must not be used before its end.
    pub(crate) fn receive(&self, tensor: &Tensor, from: usize, tag: u32) -> Result<Work> {
        let (from, tag) = (c_number(from), c_number(tag as usize));
        let mut out = ptr::null_mut();
        // SAFETY: as in `send`.
        check(unsafe {
            gp_group_recv(self.pointer.as_ptr(), lend(tensor), from, tag, &raw mut out)
        })?;
        Work::new(out, tensor)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_group_free(self.pointer.as_ptr()) }
    }
}

/// A send or receive under way. It keeps its tensor alive.
#[derive(Debug)]
pub(crate) struct Work {
    pointer: NonNull<c_void>,
    _tensor: Tensor,
}

// SAFETY: the object is reference-counted with atomics; its tensor is never looked at.
unsafe impl Send for Work {}
// SAFETY: gloo locks the work around each call, so that one thread may abort it while another
// one waits for it; its tensor is never looked at.
unsafe impl Sync for Work {}

impl Work {
    fn new(pointer: *mut c_void, tensor: &Tensor) -> Result<Self> {
        Ok(Self {
            pointer: made(pointer)?,
            _tensor: tensor.shallow_clone(),
        })
    }

    /// Waits for its end. *Returns* whether it is done; it is not where it was aborted.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool> {
        let mut done = 0;
        // SAFETY: the work is alive, and the place lives through the call.
        check(unsafe {
            gp_work_wait(self.pointer.as_ptr(), milliseconds(timeout), &raw mut done)
        })?;
        Ok(done != 0)
    }

    /// Frees threads that wait for it, now or later. The group is unusable after that.
    pub(crate) fn abort(&self) -> Result<()> {
        // SAFETY: the work is alive.
        check(unsafe { gp_work_abort(self.pointer.as_ptr()) })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_work_free(self.pointer.as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
