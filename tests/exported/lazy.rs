//! Only the stage that holds a weight reads it, once.
//!
//! Reads and memory are measured in separate processes that do nothing else.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::sync::Arc;

use gpipe::models;
use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::world::World;
use gpipe::{Optimizer, Pipeline, optim::Sgd};
use serde_json::{Value, json};

use crate::fixture;
use crate::forged::Zip;
use crate::support::single_threaded;

/// Passes the file to a process that runs a part of a test.
const PART: &str = "EXPORTED_TEST_PART";
const MIB: u64 = 1 << 20;

/// Sizes of the four linear layers of `mlp`; the second has nearly all of the bytes.
const SIZES: [[i64; 2]; 4] = [[2048, 8], [4096, 2048], [8, 4096], [3, 8]];

/// Bytes of each layer.
fn bytes_of_layers() -> [u64; 4] {
    SIZES.map(|[out, into]| u64::try_from(4 * out * (into + 1)).unwrap())
}

/// Writes `mlp` with other sizes, and zero weights.
fn large(path: &Path) {
    let mut zip = Zip::open("mlp");
    let mut data = Vec::new();
    zip.json("_weights_config.json", |config| {
        for (layer, [out, into]) in ["0", "3", "6", "8"].iter().zip(SIZES) {
            for (name, shape) in [("weight", vec![out, into]), ("bias", vec![out])] {
                let own = &mut config["config"][format!("{layer}.{name}")];
                let meta = &mut own["tensor_meta"];
                let sizes = |all: &[i64]| all.iter().map(|n| json!({"as_int": n})).collect();
                meta["sizes"] = Value::Array(sizes(&shape));
                let strides = if name == "weight" {
                    vec![into, 1]
                } else {
                    vec![1]
                };
                meta["strides"] = Value::Array(sizes(&strides));
                let entry = own["path_name"].as_str().unwrap().to_owned();
                data.push((
                    entry,
                    usize::try_from(4 * shape.iter().product::<i64>()).unwrap(),
                ));
            }
        }
    });
    for (entry, bytes) in data {
        *zip.entry(&format!("/{entry}")) = vec![0; bytes];
    }
    fs::write(path, zip.agreed().bytes()).unwrap();
}

/// Reads a number about this process from `/proc/self`.
fn told(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.unwrap().trim_start_matches(':').split_whitespace();
    let number: u64 = words.next().unwrap().parse().unwrap();
    if words.next() == Some("kB") {
        number * 1024
    } else {
        number
    }
}

/// Bytes that a process reads, and its increase in memory, while it builds its stages; a step then shows that
/// they are complete.
fn measure(path: &str) -> (u64, u64) {
    single_threaded();
    let world = Arc::new(World::from_env().unwrap());
    let float = (Kind::Float, Device::Cpu);
    // Loads code and libtorch's own allocations beforehand.
    let small = models::exported(fixture::path("mlp")).unwrap();
    let _small = Pipeline::new(small, &[Device::Cpu; 4], 2).unwrap();
    let (read, held) = (told("io", "rchar"), told("status", "VmRSS"));
    let model = models::exported(path).unwrap();
    let builder = Pipeline::builder(model).micro_batches(2).world(&world);
    let devices = vec![Device::Cpu; 4 / world.size()];
    let builder = builder.devices(&devices).balance(&[1; 4]);
    let mut pipe = builder.threads_per_stage(1).build().unwrap();
    let (read, held) = (told("io", "rchar") - read, told("status", "VmHWM") - held);
    let (x, y) = (Tensor::ones([4, 8], float), Tensor::ones([4, 3], float));
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let report = pipe.train_step(&x, &y, loss).unwrap();
    assert_eq!(report.read().unwrap().loss, 1.0);
    Optimizer::new(Sgd::default()).step(&mut pipe).unwrap();
    (read, held)
}

/// Runs only in a process that another test starts.
#[test]
fn part() {
    let Ok(path) = env::var(PART) else {
        return;
    };
    let (read, held) = measure(&path);
    println!("\nmeasured {read} {held}");
    exit(0);
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// Bytes read and memory held by each of `count` processes, by rank.
fn in_processes(count: usize, path: &Path) -> Vec<(u64, u64)> {
    let port = free_port().to_string();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "lazy::part", "--nocapture"])
            .env(PART, path)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let all: Vec<_> = (0..count).map(start).collect();
    let ends = all.into_iter().map(|own| own.wait_with_output().unwrap());
    ends.map(|ended| {
        let text = String::from_utf8(ended.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("measured "));
        let line = line.unwrap_or_else(|| panic!("it measured nothing: {text}"));
        let (read, held) = line.split_once(' ').unwrap();
        (read.parse().unwrap(), held.parse().unwrap())
    })
    .collect()
}

#[test]
fn each_of_four_processes_reads_and_holds_its_own_weights_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt2");
    large(&path);
    let measured = in_processes(4, &path);
    for ((read, held), own) in measured.into_iter().zip(bytes_of_layers()) {
        // The program, and messages of the other processes.
        assert!(
            (own..own + MIB / 2).contains(&read),
            "{read} read, {own} own"
        );
        // Read buffers, and the memory of threads and queues.
        assert!(held < own + 16 * MIB, "{held} held, {own} own");
    }
}

#[test]
fn one_process_holds_no_weight_twice_while_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt2");
    large(&path);
    let own: u64 = bytes_of_layers().iter().sum();
    let (read, held) = in_processes(1, &path)[0];
    assert!(
        (own..own + MIB / 2).contains(&read),
        "{read} read, {own} own"
    );
    assert!(held < own + 16 * MIB, "{held} held, {own} own");
}
