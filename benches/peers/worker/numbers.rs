//! Initial values and data, bit for bit those of `workloads.py`.
//!
//! Element `i` of tensor `t` comes from splitmix64 of `(t << 40) + i` (Steele, Lea,
//! Flood 2014). Parameters are tensors 1, 2, … in the order of the layers, each of
//! which lists its own; the input and the target have numbers of their own.

use std::cell::Cell;

use gpipe::tch::{Tensor, nn};

pub const INPUT: u64 = 1_000_000;
pub const TARGET: u64 = 1_000_001;

fn bits(tensor: u64, index: u64) -> u64 {
    let mut z = (tensor << 40)
        .wrapping_add(index)
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn count(shape: &[i64]) -> u64 {
    shape.iter().product::<i64>().unsigned_abs()
}

/// Uniform from `-bound` to `bound`, in single precision throughout.
pub fn symmetric(tensor: u64, shape: &[i64], bound: f64) -> Tensor {
    let bound = bound as f32;
    let number = |index| {
        let unit = (bits(tensor, index) >> 40) as f32 * 2.0_f32.powi(-24);
        (unit * 2.0 - 1.0) * bound
    };
    let numbers: Vec<f32> = (0..count(shape)).map(number).collect();
    Tensor::from_slice(&numbers).view(shape)
}

/// Whole numbers from 0 to below `limit`.
pub fn integers(tensor: u64, shape: &[i64], limit: u64) -> Tensor {
    let number = |index| ((bits(tensor, index) >> 33) % limit) as i64;
    let numbers: Vec<i64> = (0..count(shape)).map(number).collect();
    Tensor::from_slice(&numbers).view(shape)
}

/// The parameters of one layer, in the order in which they are numbered.
pub struct Parameters<'a, 'p> {
    path: &'a nn::Path<'p>,
    next: Cell<u64>,
}

impl<'a, 'p> Parameters<'a, 'p> {
    /// Parameters of a layer whose first one has the number `first`.
    pub fn new(path: &'a nn::Path<'p>, first: u64) -> Self {
        let next = Cell::new(first);
        Self { path, next }
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Path of the buffers.
    pub fn path(&self) -> &'a nn::Path<'p> {
        self.path
    }

    /// Random numbers between `-bound` and `bound`.
    pub fn random(&self, name: &str, shape: &[i64], bound: f64) -> Tensor {
        let value = symmetric(self.number(), shape, bound);
        self.path.var_copy(name, &value)
    }

    /// A norm's weights, all 1.
    pub fn ones(&self, name: &str, size: i64) -> Tensor {
        self.number();
        self.path.ones(name, &[size])
    }

    /// Biases, all 0.
    pub fn zeros(&self, name: &str, size: i64) -> Tensor {
        self.number();
        self.path.zeros(name, &[size])
    }
}
