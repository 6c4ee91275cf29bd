//! Nodes and replicas: by hand, against a slow simulation, and invariants.

mod by_hand;
mod random;

use gpipe_partitioner::{Bytes, Link, Micros};

fn micros(time: f64) -> Micros {
    Micros::new(time).unwrap()
}

/// Link of `bandwidth` bytes per microsecond.
fn link(bandwidth: u64, latency: u32) -> Link {
    Link::new(Bytes(bandwidth * 1_000_000), micros(f64::from(latency))).unwrap()
}
