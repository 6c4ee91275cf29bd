//! Checks that a model fits into memory.

use gpipe_partitioner::Bytes;
use tch::Device;

use super::Failure;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::memory::room_on;

/// Checks that the CPU can hold so many copies of a model's parameters, unless other devices hold a
/// part; `what` names them, and `instead` is the advice.
pub(super) fn check_model(
    spec: &ModelSpec,
    (what, copies): (&str, u64),
    devices: &[Device],
    instead: &str,
) -> Result<(), Failure> {
    if !is_host(devices) {
        return Ok(());
    }
    let bytes = spec.build().parameter_bytes()?.iter().sum::<u64>();
    let what = format!("{what} of `{}`", spec.name());
    check(&what, bytes.saturating_mul(copies), instead).map_err(Failure::Usage)
}

/// Whether these devices use only host memory.
pub(super) fn is_host(devices: &[Device]) -> bool {
    devices.iter().all(|device| *device == Device::Cpu)
}

/// Rejects memory needs that cannot be met, as a system out of memory kills programs without a message.
/// `what` takes `needs` bytes; `instead` is the advice.
pub(super) fn check(what: &str, needs: u64, instead: &str) -> Result<(), String> {
    fits(what, needs, free(), instead)
}

fn fits(what: &str, needs: u64, free: Option<u64>, instead: &str) -> Result<(), String> {
    match free {
        Some(free) if needs > free => Err(format!(
            "{what} need {} of memory, but {} are free: {instead}",
            Bytes(needs),
            Bytes(free)
        )),
        _ => Ok(()),
    }
}

/// Bytes of available memory, if the system reports it.
fn free() -> Option<u64> {
    let room = room_on(Device::Cpu).ok();
    room.map(|(free, _)| free.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_numbers_and_a_way_out() {
        let kib = |number: u64| number * 1024;
        assert_eq!(fits("books", kib(2), Some(kib(2)), "read"), Ok(()));
        assert_eq!(fits("books", kib(2), None, "read"), Ok(()));
        assert_eq!(
            fits("books", kib(3), Some(kib(2)), "read fewer").unwrap_err(),
            "books need 3.0 KiB of memory, but 2.0 KiB are free: read fewer"
        );
    }
}
