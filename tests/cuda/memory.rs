//! Memory use, limits and out-of-memory errors.

use gpipe::memory::{limit_device, of_device, reset_device_peak, room_on};
use gpipe::partitioner::Bytes;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, error::OutOfMemory, optim::AdamW};

use crate::harness::{Test, mib, skip};
use crate::support::{assert_same_bits, cross_entropy, snapshot};

const GPU: Device = Device::Cuda(0);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("memory::the_allocator_tells_current_and_peak", counts),
        ("memory::a_limit_is_kept_and_told", limit),
        (
            "memory::large_tensors_of_the_host_ask_for_huge_pages",
            huge_pages,
        ),
        (
            "memory::a_device_that_is_full_is_an_error_and_the_pipeline_lives",
            full,
        ),
        (
            "memory::an_update_that_has_no_room_changes_nothing",
            no_room_for_updates,
        ),
    ]
}

fn counts() {
    let before = of_device(GPU).unwrap().current;
    reset_device_peak(GPU).unwrap();
    let x = Tensor::zeros([1 << 20], (Kind::Float, GPU));
    let now = of_device(GPU).unwrap();
    assert_eq!(now.current - before, 4 << 20);
    drop(x);
    let after = of_device(GPU).unwrap();
    assert_eq!(after.current, before);
    assert!(after.peak >= before + (4 << 20));
}

/// Removes the limit when dropped.
struct Limited;

impl Limited {
    /// Limits the device to `more` beyond its present use.
    fn to(more: Bytes) -> Self {
        let taken = of_device(GPU).unwrap().current;
        limit_device(GPU, Bytes(taken + more.0)).unwrap();
        Self
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let (_, total) = room_on(GPU).unwrap();
        limit_device(GPU, total).unwrap();
    }
}

fn limit() {
    let _limited = Limited::to(mib(512));
    let refused = Tensor::f_zeros([1 << 28], (Kind::Float, GPU));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("out of memory"), "{message}");
    drop(Tensor::zeros([1 << 20], (Kind::Float, GPU)));
    let (_, total) = room_on(GPU).unwrap();
    let error = limit_device(GPU, Bytes(total.0 + 1)).unwrap_err();
    assert!(error.to_string().contains("which has"), "{error}");
}

/// The second layer allocates as many floats as the target's first number.
fn hungry() -> Sequential {
    Sequential::new()
        .layer("one", |p| nn::linear(p, 8, 8, nn::LinearConfig::default()))
        .layer("two", |p| {
            let linear = nn::linear(p, 8, 5, nn::LinearConfig::default());
            nn::func_t(move |x: &Tensor, _| {
                let wanted = x.size()[0] * (1 << 24);
                let eaten = Tensor::zeros([wanted], (Kind::Float, x.device()));
                x.apply(&linear) + eaten.narrow(0, 0, 1)
            })
        })
}

fn full() {
    let mut pipe = Pipeline::builder(hungry())
        .devices(&[GPU; 2])
        .micro_batches(2)
        .build()
        .unwrap();
    let batch = |samples: i64| {
        let x = Tensor::ones([samples, 8], (Kind::Float, Device::Cpu));
        (x, Tensor::zeros([samples], (Kind::Int64, Device::Cpu)))
    };
    let _limited = Limited::to(mib(512));
    let (x, y) = batch(64);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    let text = error.to_string();
    for part in [
        "stage 1",
        "layer `two`",
        "micro-batch 0",
        "2.0 GiB asked for",
        "allowed",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    let source = &error.stage_error().unwrap().source;
    assert!(source.downcast_ref::<OutOfMemory>().is_some(), "{text}");
    let (x, y) = batch(4);
    let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert!(report.read().unwrap().loss.is_finite());
}

/// Two stages of one layer each, of 16 MiB.
fn heavy() -> Pipeline {
    let side = 2048;
    let linear = move |p: &nn::Path<'_>| nn::linear(p, side, side, nn::LinearConfig::default());
    let model = Sequential::new().layer("one", linear).layer("two", linear);
    Pipeline::builder(model)
        .devices(&[GPU; 2])
        .micro_batches(2)
        .seed(4)
        .build()
        .unwrap()
}

/// Memory for AdamW's states of one stage, but not of both.
fn no_room_for_updates() {
    for offload in [false, true] {
        let x = Tensor::ones([4, 2048], (Kind::Float, Device::Cpu));
        let y = Tensor::zeros([4], (Kind::Int64, Device::Cpu));
        let adamw = || Optimizer::new(AdamW::default()).offload(offload);
        let (mut pipe, mut optimizer) = (heavy(), adamw());
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        let before = snapshot(&mut pipe);
        let limited = Limited::to(mib(48));
        let error = optimizer.step(&mut pipe).unwrap_err().to_string();
        drop(limited);
        assert!(error.contains("cuda:0 is out of memory"), "{error}");
        assert_same_bits(&snapshot(&mut pipe), &before, "no room");
        optimizer.step(&mut pipe).unwrap();
        let updated = snapshot(&mut pipe);
        drop((pipe, optimizer));
        let (mut calm, mut optimizer) = (heavy(), adamw());
        calm.train_step(&x, &y, cross_entropy).unwrap();
        optimizer.step(&mut calm).unwrap();
        assert_same_bits(&updated, &snapshot(&mut calm), "with room again");
    }
}

/// The `VmFlags` line of the memory at an address.
fn flags_at(address: usize) -> Option<String> {
    let all = std::fs::read_to_string("/proc/self/smaps").ok()?;
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

/// Regression test: a CPU stage that sent 64 MiB per micro-batch to a GPU waited for a page fault at each 4
/// KiB.
fn huge_pages() {
    let can =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !can.contains("[madvise]") && !can.contains("[always]") {
        skip("this system has no huge pages to ask for");
    }
    let large = Tensor::ones([16 << 20], (Kind::Float, Device::Cpu));
    let flags = flags_at(large.data_ptr() as usize).unwrap();
    assert!(flags.split_whitespace().any(|own| own == "hg"), "{flags}");
}
