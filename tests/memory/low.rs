//! A profile with `low_memory` holds one layer at a time, and a brief one measures equal layers once.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Layer, Sequential, Values,
    layers::Context,
    profile::{ProfileOptions, Sample, profile},
};

use crate::alone;

const SIDE: i64 = 1024;
const LAYERS: usize = 48;
/// Parameter bytes of all layers; the gradients take the same.
const ALL: u64 = (LAYERS as u64) * 4 * (SIDE * SIDE) as u64;

/// Set in a process that measures itself.
const CHILD: &str = "GPIPE_TEST_LOW_MEMORY";

/// Peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

fn linears(layers: usize, side: i64) -> Sequential {
    Sequential::new().layers("linear", layers, move |p: &nn::Path<'_>, _| {
        nn::linear(p, side, side, nn::LinearConfig::default())
    })
}

fn rows(samples: i64, side: i64) -> Sample {
    let input = Tensor::ones([samples, side], (Kind::Float, Device::Cpu));
    Sample::new(input.set_requires_grad(true))
}

fn options(low_memory: bool, brief: bool) -> ProfileOptions {
    let mut options = ProfileOptions::new(&[Device::Cpu, Device::Cpu]).quick();
    options.threads_per_stage = Some(1);
    options.budget = std::time::Duration::from_millis(1);
    (options.low_memory, options.brief) = (low_memory, brief);
    options
}

/// Increase of a separate process's peak by a profile.
fn growth(how: &str) -> u64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["low::the_peak_is_one_layers", "--exact", "--nocapture"])
        .env(CHILD, how)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("grown by "));
    let grown = line.unwrap_or_else(|| panic!("{text}{:?}", output.stderr));
    grown.1.trim().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn the_peak_is_one_layers() {
    if let Ok(how) = std::env::var(CHILD) {
        // Allocates the memory of one layer and of libtorch itself beforehand.
        profile(&linears(1, SIDE), &rows(2, SIDE), &options(true, true)).unwrap();
        let before = peak();
        let options = options(how != "whole", how == "brief");
        profile(&linears(LAYERS, SIDE), &rows(2, SIDE), &options).unwrap();
        println!("grown by {}", peak() - before);
        return;
    }
    let whole = growth("whole");
    println!("whole: {whole}");
    assert!(
        whole > ALL,
        "without low_memory it is {whole}, which proves nothing"
    );
    for how in ["low", "brief"] {
        let low = growth(how);
        println!("{how}: {low}");
        // The allocator's cache holds a few layers, and varies.
        assert!(
            low < ALL && 3 * low < whole,
            "{how}: {low} of {ALL}, {whole}"
        );
    }
}

/// A linear layer that counts its forwards.
#[derive(Debug)]
struct Counting {
    linear: nn::Linear,
    forwards: Arc<AtomicUsize>,
    slow: bool,
}

impl Layer for Counting {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        let input = inputs.into_one()?;
        let mut output = input.apply(&self.linear);
        if self.slow {
            // More than twice as slow, with the same parameters and shapes.
            for _ in 0..12 {
                output = output.apply(&self.linear).tanh();
            }
        }
        Ok(output.into())
    }
}

/// Forward counts of each layer in a brief profile, and the profile.
fn counted(build: fn(usize) -> (i64, bool)) -> (Vec<usize>, gpipe::profile::Profiled) {
    let counters: Vec<_> = (0..5).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    let mut model = Sequential::new();
    for (number, forwards) in counters.iter().cloned().enumerate() {
        model = model.layer(format!("layer.{number}"), move |p: &nn::Path<'_>| {
            let (outputs, slow) = build(number);
            Counting {
                linear: nn::linear(p, SIDE, outputs, nn::LinearConfig::default()),
                forwards: Arc::clone(&forwards),
                slow,
            }
        });
    }
    let measured = profile(&model, &rows(128, SIDE), &options(true, true)).unwrap();
    let forwards = counters.iter().map(|count| count.load(Ordering::Relaxed));
    (forwards.collect(), measured)
}

/// Micro-batch sizes: the whole sample, a half and a quarter.
const SIZES: usize = 3;

#[test]
fn like_layers_are_measured_once() {
    let _alone = alone();
    let (forwards, measured) = counted(|number| (if number < 4 { SIDE } else { 10 }, false));
    let layers = measured.profile.layers();
    assert_eq!(layers.len(), 5);
    // On a noisy machine single layers may be measured after all.
    let once = forwards[1..4]
        .iter()
        .filter(|&&count| count <= SIZES + 1)
        .count();
    assert!(once >= 1, "{forwards:?}");
    assert!(
        forwards[0] > 2 * SIZES && forwards[4] > 2 * SIZES,
        "{forwards:?}"
    );
    for (number, layer) in layers.iter().enumerate() {
        assert_eq!(layer.name, format!("layer.{number}"));
        let outputs = if number < 4 { SIDE as u64 } else { 10 };
        assert_eq!(layer.parameters.get(), 4 * outputs * (SIDE as u64 + 1));
        assert_eq!(layer.footprint.output.get(), 4 * 128 * outputs);
        assert_eq!(layer.curve.len(), SIZES - 1);
    }
}

#[test]
fn a_layer_that_takes_longer_is_measured_by_itself() {
    let _alone = alone();
    let (forwards, measured) = counted(|number| (SIDE, number == 3));
    assert!(forwards[3] > 2 * SIZES, "{forwards:?}");
    let time = |number: usize| measured.profile.layers()[number].times.forward.get();
    assert!(time(3) > 3.0 * time(0), "{} {}", time(3), time(0));
}
