//! Functions of the simulated devices (src/simulated_cuda), for tests that have them fail,
//! or ask what they have seen.
//!
//! The library is in the process where the devices are; nothing is linked against it. To call
//! one of its functions, `extern "C" __attribute__((visibility("default")))` there, add its
//! declaration to [`functions`] below with the types of `std::ffi`, and call
//! `simulated::NAME(..)`. Tests that do so are in a group made by
//! [`Group::simulated`](crate::harness::Group::simulated) (tests/cuda/main.rs): on a GPU they
//! are skipped, with the reason. Each test has a process of its own, so nothing needs to be
//! set back. `Group::settings` adds to the devices' settings.
#![allow(unsafe_code, reason = "calls of functions that are found by name")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    safe fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Where a function of this name, which ends in a 0, is.
fn find(name: &str) -> *mut c_void {
    let terminated = CStr::from_bytes_with_nul(name.as_bytes()).unwrap();
    // All libraries of the process: the default of the GNU C library is a null pointer.
    let address = dlsym(std::ptr::null_mut(), terminated.as_ptr());
    assert!(!address.is_null(), "the simulated devices have no {name}");
    address
}

macro_rules! functions {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $out:ty)?;)*) => {$(
        $(#[$about])*
        pub(crate) fn $name($($argument: $type),*) $(-> $out)? {
            let address = find(concat!(stringify!($name), "\0"));
            // SAFETY: the library's function of this name has these types; it does not keep
            // what it is given.
            let function = unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) $(-> $out)?>(address)
            };
            function($($argument),*)
        }
    )*};
}

functions! {
    /// What is wrong in the settings; empty if nothing is.
    fn sim_settings_error() -> *const c_char;
    /// Has so many of a kind fail on a device (-1: of all), from the so-manieth from now on:
    /// faults.h.
    fn sim_fail(what: *const c_char, device: c_int, number: u64, times: u64) -> c_int;
    /// How many of a kind there were.
    fn sim_counted(what: *const c_char, device: c_int) -> u64;
    /// A new stream of a device.
    fn sim_new_stream(device: c_int) -> i64;
    /// Makes a stream of a device the calling thread's current one; gives the one before.
    fn sim_enter_stream(device: c_int, id: i64) -> i64;
    /// Transfers of the simulated NCCL that have come to their end.
    fn sim_transfers_done() -> u64;
    /// Those that an abort has freed.
    fn sim_transfers_freed() -> u64;
    /// Has the so-manieth transfer from now on fail in the background.
    fn sim_transfers_fail(number: u64);
    /// Bytes of page-locked memory that somebody has.
    fn sim_page_locked() -> u64;
}

/// A text of the library, which lives as long as it does.
pub(crate) fn text(of: *const c_char) -> String {
    assert!(!of.is_null());
    // SAFETY: the library ends its texts with a 0 and keeps them.
    let text = unsafe { CStr::from_ptr(of) };
    text.to_string_lossy().into_owned()
}

/// Has the so-manieth of a kind from now on fail (0: none), of all devices.
pub(crate) fn fail(what: &str, number: u64) {
    fail_times(what, number, 1);
}

/// Has so many of a kind fail, the first of them the so-manieth from now on, of all devices.
pub(crate) fn fail_times(what: &str, number: u64, times: u64) {
    let name = CString::new(what).unwrap();
    assert_eq!(sim_fail(name.as_ptr(), -1, number, times), 1, "{what}");
}

/// How many of a kind there were on all devices.
pub(crate) fn counted(what: &str) -> u64 {
    sim_counted(CString::new(what).unwrap().as_ptr(), -1)
}

/// Whether this process has simulated devices: the CPU computes for them, so sizes that a GPU
/// needs to show something are too large.
pub(crate) fn has_simulated_devices() -> bool {
    std::env::var_os("GPIPE_SIMULATE_GPUS").is_some()
}

/// The functions are found: where the devices run, their settings are right.
pub(crate) fn tests() -> Vec<crate::harness::Test> {
    vec![("simulated::functions_are_found_by_name", || {
        assert_eq!(text(sim_settings_error()), "");
    })]
}
