//! Pages of large tensors.

use std::fs;

use gpipe::tch::{Device, Kind, Tensor};

use crate::alone;

/// What the system says of the memory at an address: its line of `VmFlags`.
fn flags_at(address: usize) -> Option<String> {
    let all = fs::read_to_string("/proc/self/smaps").ok()?;
    let mut here = false;
    for line in all.lines() {
        let range = line.split(' ').next().and_then(|own| own.split_once('-'));
        let ends = range.and_then(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?, number(to)?))
        });
        if let Some((from, to)) = ends {
            here = (from..to).contains(&address);
        } else if here && let Some(flags) = line.strip_prefix("VmFlags:") {
            return Some(flags.to_owned());
        }
    }
    None
}

/// A stage on the CPU that gave 64 MiB to a GPU for each micro-batch waited for a page fault at each
/// 4 KiB of it.
#[test]
fn large_tensors_ask_for_huge_pages() {
    let _alone = alone();
    let can = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !can.contains("[madvise]") && !can.contains("[always]") {
        println!("skipped: this system has no huge pages to ask for ({can})");
        return;
    }
    let large = Tensor::ones([16 << 20], (Kind::Float, Device::Cpu));
    let flags = flags_at(large.data_ptr() as usize).unwrap();
    assert!(flags.split_whitespace().any(|own| own == "hg"), "{flags}");
}
