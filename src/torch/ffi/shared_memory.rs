//! Memory shared by processes of one host, and checks that a process is alive.
//!
//! The memory belongs to an unnamed file: it is freed when the last process that has it open ends,
//! however it ends. Another process opens it through `/proc`, if it has permission to inspect the
//! first one. Linux only; elsewhere nothing is shared.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use tch::{Device, Tensor};

use crate::error::TorchError;

/// The memory of a contiguous tensor of the CPU's, which it keeps.
#[derive(Debug)]
pub(crate) struct TensorBytes {
    first: *mut u8,
    count: usize,
    _tensor: Tensor,
}

// SAFETY: the tensor's reference count is atomic, and it is never looked at. Its memory is read or
// written by one thread at a time: whoever sends it or receives into it gives it away for that.
unsafe impl Send for TensorBytes {}
// SAFETY: as above.
unsafe impl Sync for TensorBytes {}

impl TensorBytes {
    pub(crate) fn new(tensor: &Tensor) -> Result<Self, TorchError> {
        if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
            return Err(TorchError::new(
                "only contiguous tensors of the CPU's are sent",
            ));
        }
        Ok(Self {
            first: tensor.data_ptr().cast(),
            count: tensor.numel() * tensor.kind().elt_size_in_bytes(),
            _tensor: tensor.shallow_clone(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn part(&self, begin: usize, count: usize) -> *mut u8 {
        let end = begin.checked_add(count);
        assert!(
            end.is_some_and(|end| end <= self.count),
            "not in this tensor"
        );
        // SAFETY: it was just checked that this is inside.
        unsafe { self.first.add(begin) }
    }

    /// Copies all bytes to the end of these.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let first = self.part(0, self.count);
        if self.count > 0 {
            // SAFETY: so many bytes are there, and nobody writes to them meanwhile.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(first, self.count) });
        }
    }

    /// Copies bytes to the tensor's begin.
    pub(crate) fn fill(&self, bytes: &[u8]) {
        let into = self.part(0, bytes.len());
        // SAFETY: both are as long, and nobody else has the tensor's memory meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::*;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::ptr::{self, NonNull};

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use rustix::thread::futex;

    use super::{AtomicU32, AtomicU64, Duration, TensorBytes};

    /// A file without a name.
    #[derive(Debug)]
    pub(crate) struct SharedFile(File);

    impl SharedFile {
        pub(crate) fn new(bytes: usize) -> io::Result<Self> {
            let file = File::from(memfd_create("gpipe", MemfdFlags::CLOEXEC)?);
            file.set_len(bytes as u64)?;
            Ok(Self(file))
        }

        /// Opens the memory of another process, by the file number there.
        pub(crate) fn of(process: u32, number: u32) -> io::Result<Self> {
            let path = format!("/proc/{process}/fd/{number}");
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map(Self)
        }

        /// Returns the number by which another process opens it, while this one has it open.
        pub(crate) fn number(&self) -> u32 {
            self.0.as_raw_fd() as u32
        }

        pub(crate) fn map(&self, begin: u64, bytes: usize) -> io::Result<SharedMemory> {
            let end = begin.checked_add(bytes as u64);
            if end.is_none_or(|end| self.0.metadata().is_ok_and(|own| own.len() < end)) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new place is asked for, and nothing else is there.
            let memory = unsafe {
                let anywhere = ptr::null_mut();
                mmap(
                    anywhere,
                    bytes,
                    protection,
                    MapFlags::SHARED,
                    &self.0,
                    begin,
                )?
            };
            let memory = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(SharedMemory { memory, bytes })
        }
    }

    /// A part of such a file. What is in it may change at any time: it is read and written as
    /// atomics, and as bytes that two processes have agreed on whose turn it is to touch.
    #[derive(Debug)]
    pub(crate) struct SharedMemory {
        memory: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: the mapping belongs to the process and not to a thread; all ways to it are checked.
    unsafe impl Send for SharedMemory {}
    // SAFETY: as above; see the type for who may touch what.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        fn at(&self, place: usize, bytes: usize) -> *mut u8 {
            let end = place.checked_add(bytes);
            assert!(
                end.is_some_and(|end| end <= self.bytes),
                "not in this memory"
            );
            // SAFETY: it was just checked that this is inside.
            unsafe { self.memory.as_ptr().add(place) }
        }

        pub(crate) fn word(&self, place: usize) -> &AtomicU32 {
            assert!(place.is_multiple_of(4));
            // SAFETY: aligned, inside, and only ever used as this atomic.
            unsafe { AtomicU32::from_ptr(self.at(place, 4).cast()) }
        }

        pub(crate) fn number(&self, place: usize) -> &AtomicU64 {
            assert!(place.is_multiple_of(8));
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(self.at(place, 8).cast()) }
        }

        /// Writes bytes to a place that no one reads at the same time.
        pub(crate) fn put(&self, place: usize, bytes: &[u8]) {
            let to = self.at(place, bytes.len());
            // SAFETY: both are as long, and one is a file's memory, the other one is not.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }

        /// Reads bytes of a place that no one writes to at the same time.
        pub(crate) fn get(&self, place: usize, into: &mut [u8]) {
            let from = self.at(place, into.len());
            // SAFETY: as in `put`.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }

        /// Writes what a tensor has from `begin` on.
        pub(crate) fn put_part(
            &self,
            place: usize,
            tensor: &TensorBytes,
            begin: usize,
            bytes: usize,
        ) {
            let from = tensor.part(begin, bytes);
            // SAFETY: both are as long, and one is a file's memory, the other one is not.
            unsafe { ptr::copy_nonoverlapping(from, self.at(place, bytes), bytes) };
        }

        /// Reads bytes into a tensor from `begin` on; no other thread may use them.
        pub(crate) fn get_part(
            &self,
            place: usize,
            tensor: &TensorBytes,
            begin: usize,
            bytes: usize,
        ) {
            let to = tensor.part(begin, bytes);
            // SAFETY: as in `put_part`.
            unsafe { ptr::copy_nonoverlapping(self.at(place, bytes), to, bytes) };
        }
    }

    impl Drop for SharedMemory {
        fn drop(&mut self) {
            // SAFETY: it was mapped so, and every reference into it is gone with `self`.
            let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
        }
    }

    /// Sleeps until woken at this word, unless its value differs from `value`; at most `at_most`.
    pub(crate) fn sleep_at(word: &AtomicU32, value: u32, at_most: Duration) {
        let time = futex::Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // Whatever ends it: the waiting thread checks again.
        let _ = futex::wait(word, futex::Flags::empty(), value, Some(&time));
    }

    /// Wakes all, of all processes, who sleep there.
    pub(crate) fn wake_at(word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Handle of another process, which stays valid if its number is reused.
    #[derive(Debug)]
    pub(crate) struct Process(OwnedFd);

    impl Process {
        pub(crate) fn of(number: u32) -> io::Result<Self> {
            let number = i32::try_from(number).ok().and_then(Pid::from_raw);
            let number = number.ok_or(io::ErrorKind::InvalidInput)?;
            Ok(Self(pidfd_open(number, PidfdFlags::empty())?))
        }

        /// Returns whether the process has ended.
        pub(crate) fn has_ended(&self) -> bool {
            let mut ended = [PollFd::new(&self.0, PollFlags::IN)];
            poll(&mut ended, Some(&rustix::event::Timespec::default())).is_ok_and(|count| count > 0)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;

    use super::{AtomicU32, AtomicU64, Duration, TensorBytes};

    fn none<T>() -> io::Result<T> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[derive(Debug)]
    pub(crate) enum SharedFile {}

    impl SharedFile {
        pub(crate) fn new(_: usize) -> io::Result<Self> {
            none()
        }

        pub(crate) fn of(_: u32, _: u32) -> io::Result<Self> {
            none()
        }

        pub(crate) fn number(&self) -> u32 {
            match *self {}
        }

        pub(crate) fn map(&self, _: u64, _: usize) -> io::Result<SharedMemory> {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(crate) enum SharedMemory {}

    impl SharedMemory {
        pub(crate) fn word(&self, _: usize) -> &AtomicU32 {
            match *self {}
        }

        pub(crate) fn number(&self, _: usize) -> &AtomicU64 {
            match *self {}
        }

        pub(crate) fn put(&self, _: usize, _: &[u8]) {
            match *self {}
        }

        pub(crate) fn get(&self, _: usize, _: &mut [u8]) {
            match *self {}
        }

        pub(crate) fn put_part(&self, _: usize, _: &TensorBytes, _: usize, _: usize) {
            match *self {}
        }

        pub(crate) fn get_part(&self, _: usize, _: &TensorBytes, _: usize, _: usize) {
            match *self {}
        }
    }

    pub(crate) fn sleep_at(_: &AtomicU32, _: u32, _: Duration) {}

    pub(crate) fn wake_at(_: &AtomicU32) {}

    #[derive(Debug)]
    pub(crate) enum Process {}

    impl Process {
        pub(crate) fn of(_: u32) -> io::Result<Self> {
            none()
        }

        pub(crate) fn has_ended(&self) -> bool {
            match *self {}
        }
    }
}
