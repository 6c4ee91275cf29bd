//! Functions of the simulated devices (src/simulated_cuda), for tests that inject failures or query counters.
//!
//! The library is loaded into the process of the devices, not linked. To call one of its functions, declared
//! there as `extern "C" __attribute__((visibility("default")))`, add its declaration to [`functions`] below
//! with the types of `std::ffi`, and call `simulated::NAME(..)`. Tests that do so are in a group made by
//! [`Group::simulated`](crate::harness::Group::simulated) (tests/cuda/main.rs): on a GPU they are skipped,
//! with the reason. Each test has its own process, so nothing needs to be reset. `Group::settings` extends
//! the devices' settings.
#![allow(unsafe_code, reason = "calls of functions that are found by name")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    safe fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns the address of the function of this null-terminated name.
fn find(name: &str) -> *mut c_void {
    let terminated = CStr::from_bytes_with_nul(name.as_bytes()).unwrap();
    // Searches all libraries of the process: the GNU C library's default is a null pointer.
    let address = dlsym(std::ptr::null_mut(), terminated.as_ptr());
    assert!(!address.is_null(), "the simulated devices have no {name}");
    address
}

macro_rules! functions {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $out:ty)?;)*) => {$(
        $(#[$about])*
        pub(crate) fn $name($($argument: $type),*) $(-> $out)? {
            let address = find(concat!(stringify!($name), "\0"));
            // SAFETY: the library's function of this name has these types; it does not keep its arguments.
            let function = unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) $(-> $out)?>(address)
            };
            function($($argument),*)
        }
    )*};
}

functions! {
    /// The error in the settings; empty if there is none.
    fn sim_settings_error() -> *const c_char;
    /// Makes `times` operations of a kind fail on a device (-1: on all), beginning with the `number`th from
    /// now on: see faults.h.
    fn sim_fail(what: *const c_char, device: c_int, number: u64, times: u64) -> c_int;
    /// Number of operations of a kind so far.
    fn sim_counted(what: *const c_char, device: c_int) -> u64;
    /// Creates a stream on a device.
    fn sim_new_stream(device: c_int) -> i64;
    /// Makes a stream the calling thread's current one on a device; returns the previous one.
    fn sim_enter_stream(device: c_int, id: i64) -> i64;
    /// Number of completed transfers of the simulated NCCL.
    fn sim_transfers_done() -> u64;
    /// Number of transfers that an abort released.
    fn sim_transfers_freed() -> u64;
    /// Makes the `number`th transfer from now on fail in the background.
    fn sim_transfers_fail(number: u64);
    /// Bytes of page-locked memory in use.
    fn sim_page_locked() -> u64;
}

/// Copies a text of the library.
pub(crate) fn text(of: *const c_char) -> String {
    assert!(!of.is_null());
    // SAFETY: the library terminates its texts with a 0 and keeps them.
    let text = unsafe { CStr::from_ptr(of) };
    text.to_string_lossy().into_owned()
}

/// Makes the `number`th operation of a kind from now on fail (0: none), on all devices.
pub(crate) fn fail(what: &str, number: u64) {
    fail_times(what, number, 1);
}

/// Makes `times` operations of a kind fail, beginning with the `number`th from now on, on all devices.
pub(crate) fn fail_times(what: &str, number: u64, times: u64) {
    let name = CString::new(what).unwrap();
    assert_eq!(sim_fail(name.as_ptr(), -1, number, times), 1, "{what}");
}

/// Number of operations of a kind so far, on all devices.
pub(crate) fn counted(what: &str) -> u64 {
    sim_counted(CString::new(what).unwrap().as_ptr(), -1)
}

/// Whether this process has simulated devices. The CPU computes for them, so sizes that suit a GPU are too
/// large.
pub(crate) fn has_simulated_devices() -> bool {
    std::env::var_os("GPIPE_SIMULATE_GPUS").is_some()
}

/// Checks that the functions are found: where the devices run, their settings are valid.
pub(crate) fn tests() -> Vec<crate::harness::Test> {
    vec![("simulated::functions_are_found_by_name", || {
        assert_eq!(text(sim_settings_error()), "");
    })]
}
