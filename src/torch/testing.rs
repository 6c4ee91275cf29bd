//! For the tests of this crate and of those that depend on it (feature `testing`): ranks on threads of
//! one process, the report of a step that failed, layers as they are built.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tch::Device;

use crate::world::{Launcher, Times, Words, World};
use crate::{Sequential, StepReport};

/// Patience of the ranks of a test.
pub(crate) const TIMES: Times = Times {
    patience: Duration::from_secs(20),
    meeting: Duration::from_secs(20),
};

/// Words that tell a rank of `size` to meet the others at `port` of this host.
pub(crate) fn words(rank: usize, size: usize, port: u16) -> Words {
    Words {
        rank,
        size,
        local_rank: rank,
        local_size: None,
        master: Some(("127.0.0.1".to_owned(), port)),
        launcher_serves: false,
        run: "test".to_owned(),
        restarts: 0,
        launcher: Launcher::Variables,
    }
}

/// A port of this host that nobody listens on.
///
/// # Panics
/// There is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs `body` as each of `size` ranks, on threads of their own.
///
/// *Returns* their results in order of ranks.
///
/// # Panics
/// A rank cannot join, panics, or takes longer than a minute.
pub fn ranks<T: Send + 'static>(
    size: usize,
    body: impl Fn(World) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let port = free_port();
    let (done, results) = mpsc::channel();
    for rank in 0..size {
        let (body, done) = (body.clone(), done.clone());
        thread::spawn(move || {
            let world = World::join_with(words(rank, size, port), TIMES).unwrap();
            let _ = done.send((rank, body(world)));
        });
    }
    drop(done);
    let mut all: Vec<_> = (0..size)
        .map(|_| results.recv_timeout(Duration::from_mins(1)).unwrap())
        .collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The report of a step whose device failed before its loss was read.
///
/// # Panics
/// Never.
pub fn of_a_failed_device() -> StepReport {
    StepReport::of_a_failed_device()
}

/// A layer of a model, as it was built on the CPU.
#[derive(Debug)]
pub struct Built {
    /// Its name.
    pub name: String,
    /// Whether it has buffers.
    pub has_buffers: bool,
    /// Whether it may be part of a CUDA graph.
    pub graph_safe: bool,
}

/// Builds every layer of a model.
///
/// # Panics
/// A layer cannot be built.
pub fn built(model: &Sequential) -> Vec<Built> {
    let layers = model.builders().iter();
    let built = layers.map(|builder| {
        let built = builder.build(Device::Cpu, 0).unwrap();
        Built {
            has_buffers: !built.buffers().is_empty(),
            graph_safe: built.layer.graph_safe(),
            name: built.name,
        }
    });
    built.collect()
}
