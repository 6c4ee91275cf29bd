use super::*;
use std::thread;
use tch::{Kind, Tensor};

const KIB: u64 = 1024;

/// Makes a tensor of `count` KiB.
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
    let (free, total) = room_on(Device::Cpu).unwrap();
    assert!(free <= total && free > Bytes(0));
}

/// The shim's own picture of libtorch's class calls virtual functions by their places.
#[test]
fn the_class_of_the_cuda_allocator_begins_as_it_did() {
    let functions = |path: &str, class: &str| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let (_, body) = text.split_once(class).unwrap();
        let declared = body.split("virtual ").skip(1).map(|function| {
            let before = function.split('(').next().unwrap();
            before.rsplit([' ', '\n']).next().unwrap().to_owned()
        });
        declared.collect()
    };
    let theirs = functions(
        concat!(env!("LIBTORCH"), "/include/c10/cuda/CUDACachingAllocator.h"),
        "class CUDAAllocator : public DeviceAllocator {",
    );
    let own = functions(
        concat!(env!("CARGO_MANIFEST_DIR"), "/shim/cuda_allocator.h"),
        "struct CudaAllocator : c10::DeviceAllocator {",
    );
    assert_eq!(own.len(), 16);
    let named = |name: &String| name.replace("recordCudaStream", "recordStream");
    let own: Vec<_> = own.iter().map(named).collect();
    assert_eq!(own, theirs[..16]);
}

/// The object files of an archive made by `ar`.
fn objects(archive: &[u8]) -> Vec<&[u8]> {
    let mut rest = archive.strip_prefix(b"!<arch>\n").unwrap();
    let mut found = Vec::new();
    while rest.len() > 60 {
        let (header, after) = rest.split_at(60);
        let size = std::str::from_utf8(&header[48..58]).unwrap();
        let size: usize = size.trim().parse().unwrap();
        found.push(&after[..size]);
        rest = &after[(size + size % 2).min(after.len())..];
    }
    found
}

/// In an unnamed namespace nothing can implement the class, which the compiler noticed: it turned
/// the call that sets a limit into one of `__cxa_pure_virtual`, and any limit ended the process.
/// (Elsewhere the name may be in the tables of libtorch's abstract classes.)
#[test]
fn no_virtual_call_of_the_shim_was_compiled_into_the_end_of_the_process() {
    let library = std::fs::read(concat!(env!("OUT_DIR"), "/libgpipe_shim.a")).unwrap();
    let names = |object: &[u8], name: &str| {
        let name = name.as_bytes();
        object.windows(name.len()).any(|bytes| bytes == name)
    };
    let asks = |object: &&[u8]| names(object, "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE");
    let asking: Vec<_> = objects(&library).into_iter().filter(asks).collect();
    for user in ["gp_cuda_limit", "gp_cuda_graph_pool", "gp_acts"] {
        assert!(asking.iter().any(|object| names(object, user)), "{user}");
    }
    for object in asking {
        assert!(!names(object, "__cxa_pure_virtual"));
    }
}

#[test]
fn the_cpu_has_no_caching_allocator() {
    let error = of_device(Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("memory account"), "{error}");
    assert!(reset_device_peak(Device::Cpu).is_err());
    assert!(limit_device(Device::Cpu, Bytes(1)).is_err());
    assert!(of_device(Device::Cuda(1000)).is_err());
}
