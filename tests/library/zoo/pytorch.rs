//! Models of the zoo give PyTorch's results for the same weights at the published sizes: outputs, loss,
//! gradients, batch-norm statistics.
//!
//! `tests/fixtures/make.py` made the expected values, and describes how the weights are made.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gpipe::Pipeline;
use gpipe::tch::{Device, Kind, Tensor};
use serde_json::Value;

use super::spec;

/// Up to 138 million weights and their gradients: memory for one such model at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Tolerance of sums in single precision against double precision, as a multiple of PyTorch's own error
/// (stored in the fixture), relative to the root mean square of the values. The order of addition differs by
/// machine and number of threads.
const TIMES: f64 = 10.0;
/// Lower bound of the tolerance, where PyTorch's error happens to be very small: 2^-24 per step, and a few
/// hundred steps from input to output.
const LEAST: f64 = 2e-5;
/// The same for gradients before kinks, in ReLU and max pooling: a unit within rounding of zero affects all
/// layers before it.
const KINKED: f64 = 3e-2;

const MASK: i64 = (1 << 32) - 1;

/// Elements processed at a time, to save memory.
const PIECE: i64 = 1 << 20;

/// 32-bit FNV-1a.
fn salt(name: &str) -> i64 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    name.as_bytes().iter().fold(0x811C_9DC5, step).into()
}

/// 16 bits for each of the elements `from..to` of a tensor.
fn hashed(name: &str, from: i64, to: i64) -> Tensor {
    let mut h = Tensor::arange_start(from, to, (Kind::Int64, Device::Cpu));
    let _ = h.g_mul_scalar_(2_654_435_761_i64);
    let _ = h.g_add_scalar_(salt(name)).bitwise_and_(MASK);
    h = h.bitwise_xor_tensor(&h.bitwise_right_shift_tensor_scalar(16));
    let _ = h.g_mul_scalar_(0x045D_9F3B_i64).bitwise_and_(MASK);
    h.bitwise_right_shift_tensor_scalar_(16)
}

fn whole(name: &str, shape: &[i64], below: i64) -> Tensor {
    let count = shape.iter().product();
    hashed(name, 0, count).remainder(below).reshape(shape)
}

/// Created in pieces: the integers take twice the memory of the result.
fn made(name: &str, shape: &[i64], centre: f64, scale: f64) -> Tensor {
    let count = shape.iter().product();
    let values = Tensor::empty([count], (Kind::Float, Device::Cpu));
    for from in (0..count).step_by(PIECE as usize) {
        let to = (from + PIECE).min(count);
        let piece = (hashed(name, from, to) - (1 << 15)).to_kind(Kind::Float);
        // Powers of two and 16 bits, so nothing is rounded.
        let piece = piece * (scale / f64::from(1 << 15)) + centre;
        values.narrow(0, from, to - from).copy_(&piece);
    }
    values.reshape(shape)
}

/// A file written by `make.py`.
struct Fixture(Value);

impl Fixture {
    fn read(model: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let text = fs::read_to_string(folder.join(format!("{model}.json"))).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    /// Every tensor by PyTorch's name.
    fn tensors(&self) -> impl Iterator<Item = (&str, Tensor)> {
        self.0["tensors"].as_array().unwrap().iter().map(|row| {
            let name = row[0].as_str().unwrap();
            let (centre, scale) = (row[2].as_f64().unwrap(), row[3].as_f64().unwrap());
            (name, made(name, &sizes(&row[1]), centre, scale))
        })
    }
}

fn sizes(of: &Value) -> Vec<i64> {
    let sizes = of.as_array().unwrap();
    sizes.iter().map(|size| size.as_i64().unwrap()).collect()
}

/// The root mean square of a flat tensor.
fn rms(flat: &Tensor) -> f64 {
    let squares = |piece: &Tensor| piece.to_kind(Kind::Double).square().sum(Kind::Double);
    let sums = flat.split(PIECE, 0);
    let sum: f64 = sums
        .iter()
        .map(|piece| squares(piece).double_value(&[]))
        .sum();
    (sum / flat.numel() as f64).sqrt()
}

/// Compares a tensor, in PyTorch's layout, with the fixture.
#[track_caller]
fn assert_like(expected: &Value, tensor: &Tensor, least: f64) {
    let name = expected["name"].as_str().unwrap();
    assert_eq!(tensor.size(), sizes(&expected["shape"]), "{name}");
    let flat = tensor.detach().reshape([-1]);
    let number = |of: &Value| of.as_f64().unwrap();
    let at = Tensor::from_slice(&sizes(&expected["at"]));
    let ours = flat.index_select(0, &at).to_kind(Kind::Double);
    let theirs: Vec<f64> = expected["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect();
    let theirs = Tensor::from_slice(&theirs);
    let apart = (&ours - &theirs).abs().max().double_value(&[]) / rms(&theirs);
    let error = apart.max((rms(&flat) / number(&expected["rms"]) - 1.0).abs());
    let allowed = least.max(TIMES * number(&expected["float32"]));
    println!("{name}: {error:.1e} of {allowed:.1e}");
    assert!(
        error <= allowed,
        "{name} is {error:e} off, more than {allowed:e}: {ours} {theirs}"
    );
}

/// A tensor's name here, and whether PyTorch stores it transposed.
type Renamed = (String, bool);

/// Differences between the models.
struct Case {
    model: &'static str,
    micro_batches: usize,
    /// Maps PyTorch's name to ours.
    ours: fn(&str) -> Renamed,
    /// Tensors that share memory with another, which PyTorch does not list.
    tied: &'static [&'static str],
    gradients: f64,
}

impl Case {
    fn pipeline(&self, fixture: &Fixture) -> Pipeline {
        let settings: Vec<String> = serde_json::from_value(fixture.0["settings"].clone()).unwrap();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        Pipeline::builder(spec(self.model, &settings).build())
            .devices(&[Device::Cpu; 2])
            .micro_batches(self.micro_batches)
            .threads_per_stage(1)
            .build()
            .unwrap()
    }

    /// Converts between PyTorch's layout and ours, in either direction.
    fn turned(turn: bool, tensor: &Tensor) -> Tensor {
        if turn {
            tensor.tr()
        } else {
            tensor.shallow_clone()
        }
    }

    /// Loads PyTorch's weights, which must cover all of the model.
    fn load(&self, fixture: &Fixture, pipe: &mut Pipeline) {
        let mut values = Vec::new();
        for (name, tensor) in fixture.tensors() {
            let (own, turn) = (self.ours)(name);
            values.push((own, Self::turned(turn, &tensor)));
        }
        let mut left = own_tensors(pipe);
        left.retain(|(own, _)| {
            !self.tied.contains(&own.as_str()) && !values.iter().any(|(name, _)| name == own)
        });
        assert!(left.is_empty(), "PyTorch has none of {left:?}");
        // Refuses unknown names, and other shapes.
        pipe.load(&values).unwrap();
    }

    fn input(fixture: &Fixture, classes: i64) -> (Tensor, Tensor) {
        let shape = sizes(&fixture.0["input_shape"]);
        let input = match shape.len() {
            4 => made("input", &shape, 0.0, 1.0),
            _ => whole("input", &shape, classes),
        };
        let target = whole("target", &sizes(&fixture.0["target_shape"]), classes);
        (input, target)
    }

    fn check(&self) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let fixture = Fixture::read(self.model);
        let mut pipe = self.pipeline(&fixture);
        self.load(&fixture, &mut pipe);
        let output = &fixture.0["output"];
        let classes = *sizes(&output["shape"]).last().unwrap();
        let (input, target) = Self::input(&fixture, classes);
        assert_like(output, &pipe.forward(&input).unwrap(), LEAST);
        self.check_step(&fixture, &mut pipe, &input, &target);
    }

    /// One training step: its loss, its gradients, and the buffers after it.
    fn check_step(&self, fixture: &Fixture, pipe: &mut Pipeline, input: &Tensor, target: &Tensor) {
        let loss = spec(self.model, &[]).loss();
        let loss = pipe
            .train_step(input, target, loss)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        let expected = fixture.0["loss"].as_f64().unwrap();
        let error = (loss / expected - 1.0).abs();
        let own = fixture.0["loss_float32"].as_f64().unwrap();
        assert!(
            error <= LEAST.max(TIMES * own),
            "loss {loss}, not {expected}"
        );
        let tensors = own_tensors(pipe);
        for expected in fixture.0["after_step"].as_array().unwrap() {
            let (name, turn) = (self.ours)(expected["name"].as_str().unwrap());
            let (_, tensor) = tensors.iter().find(|(own, _)| *own == name).unwrap();
            let gradient = tensor.grad();
            if gradient.defined() {
                assert_like(expected, &Self::turned(turn, &gradient), self.gradients);
            } else {
                assert_like(expected, &Self::turned(turn, tensor), LEAST);
            }
        }
    }
}

fn own_tensors(pipe: &mut Pipeline) -> Vec<(String, Tensor)> {
    let mut all = pipe.parameters().unwrap();
    all.extend(pipe.buffers().unwrap());
    all
}

/// The names are torchvision's.
fn same(name: &str) -> Renamed {
    (name.to_owned(), false)
}

/// transformers' names: other prefixes, and matrices `[inputs, outputs]` in the blocks.
fn gpt(name: &str) -> Renamed {
    let name = name.strip_prefix("transformer.").unwrap();
    let own = match name.split_once('.').unwrap() {
        ("h", rest) => format!("block.{rest}"),
        ("ln_f", rest) => format!("head.ln_f.{rest}"),
        (table, _) => format!("embed.{table}"),
    };
    let turn = name.contains(".c_") && name.ends_with("weight");
    (own, turn)
}

/// Batch norm sees the whole batch at once, as in PyTorch.
#[test]
fn resnet101_computes_what_torchvisions_does() {
    Case {
        model: "resnet101",
        micro_batches: 1,
        ours: same,
        tied: &[],
        gradients: KINKED,
    }
    .check();
}

#[test]
fn vgg16_computes_what_torchvisions_does() {
    Case {
        model: "vgg16",
        micro_batches: 2,
        ours: same,
        tied: &[],
        gradients: KINKED,
    }
    .check();
}

#[test]
fn gpt2_computes_what_transformers_does() {
    Case {
        model: "gpt2",
        micro_batches: 2,
        ours: gpt,
        tied: &["head.lm_head.weight"],
        gradients: LEAST,
    }
    .check();
}
