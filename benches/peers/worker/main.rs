//! This library as a candidate of `benches/peers`.
//!
//! Started with a JSON object (`w`, `p`, `d`, `sched`, `ms`, `threads`). Reads `run K M` (run K steps with M
//! micro-batches) or `quit` from standard input, and answers each with a JSON object on a line, like
//! `worker.py`.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

mod layers;
mod numbers;
mod workloads;

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Device};
use gpipe::world::{Launcher, Words, World};
use gpipe::{Optimizer, Pipeline, settings::Kernels};
use serde::Deserialize;
use serde_json::{Value, json};
use workloads::Workload;

/// Number of first steps whose losses are printed.
const TOLD: usize = 3;

#[derive(Deserialize)]
struct Settings {
    /// The workload.
    w: String,
    /// Devices of each replica, one thread each.
    p: usize,
    /// Replicas of the pipeline.
    d: usize,
    sched: String,
    /// The numbers of micro-batches to be requested.
    ms: Vec<usize>,
    /// Intra-op threads of each stage.
    threads: usize,
    /// Kernels: `libtorch` or `onednn`.
    kernels: String,
    /// Processes, among which the devices are divided evenly.
    ranks: usize,
    rank: usize,
    port: u16,
    /// The workload's model as a file that PyTorch exported, in place of layers written here.
    program: Option<String>,
}

/// A pipeline and its training data.
struct Candidate {
    pipe: Pipeline,
    optimizer: Optimizer,
    workload: Workload,
    losses: Vec<f64>,
}

impl Candidate {
    fn new(settings: &Settings, world: &Arc<World>, micro_batches: usize) -> anyhow::Result<Self> {
        let workload = Workload::new(&settings.w)?;
        let workload = match &settings.program {
            Some(path) => workload.exported(path)?,
            None => workload,
        };
        let schedule: ScheduleKind = settings.sched.parse()?;
        let kernels: Kernels = settings.kernels.parse().map_err(anyhow::Error::msg)?;
        // A single device has a single stage, whatever the schedule's default.
        let chunks = if settings.p == 1 {
            1
        } else {
            schedule.default_chunks()
        };
        let pipe = Pipeline::builder(workload.model.clone())
            .devices(&vec![Device::Cpu; settings.p * settings.d / settings.ranks])
            .replicas(settings.d)
            .tree(settings.d)
            .world(world)
            .chunks(chunks)
            .balance(workload.balance(settings.p * chunks)?)
            .schedule(schedule)
            .micro_batches(micro_batches)
            .threads_per_stage(settings.threads)
            .kernels(kernels)
            .build()?;
        Ok(Self {
            pipe,
            optimizer: Optimizer::new(workload.update),
            workload,
            losses: Vec::new(),
        })
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let Workload {
            input,
            target,
            loss,
            ..
        } = &self.workload;
        let step = self.pipe.train_step(input, target, *loss)?;
        self.optimizer.step(&mut self.pipe)?;
        if self.losses.len() < TOLD {
            self.losses.push(step.read()?.loss);
        }
        Ok(())
    }
}

/// The processes of the candidate.
fn join(settings: &Settings) -> anyhow::Result<World> {
    let several = settings.ranks > 1;
    let words = Words {
        rank: settings.rank,
        size: settings.ranks,
        local_rank: settings.rank,
        local_size: None,
        master: several.then(|| ("127.0.0.1".to_owned(), settings.port)),
        launcher_serves: false,
        run: "peers".to_owned(),
        restarts: 0,
        launcher: if several {
            Launcher::Variables
        } else {
            Launcher::Nobody
        },
    };
    Ok(World::join(words)?)
}

/// Processor time of this process, in seconds.
fn processor_time() -> anyhow::Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat
        .rsplit_once(')')
        .context("/proc/self/stat has no name")?;
    let ticks = |field| -> anyhow::Result<f64> {
        let text = fields.split_whitespace().nth(field);
        Ok(text.context("/proc/self/stat is short")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Reads a line of `/proc/self/status`, in MB like the peers.
fn status(key: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find(|line| line.split(':').next() == Some(key))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

/// Memory after libtorch's first operation and before there is a model.
fn base() -> Value {
    tch::set_num_threads(1);
    drop(tch::Tensor::from_slice(&[1.0_f32]) + 1.0);
    json!({"rss_base_mb": status("VmRSS"), "anon_base_mb": status("RssAnon")})
}

fn answer(value: &Value) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

fn main() -> anyhow::Result<()> {
    let settings = std::env::args().nth(1).context("no settings given")?;
    let settings: Settings = serde_json::from_str(&settings).context("the settings")?;
    let base = base();
    let world = Arc::new(join(&settings)?);
    let own = |&m: &usize| Ok((m, Candidate::new(&settings, &world, m)?));
    let mut candidates: BTreeMap<usize, Candidate> =
        settings.ms.iter().map(own).collect::<anyhow::Result<_>>()?;
    answer(&json!({"ready": 1}))?;
    let origin = Instant::now();
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["run", steps, micro_batches] = words[..] else {
            break;
        };
        let (steps, micro_batches): (usize, usize) = (steps.parse()?, micro_batches.parse()?);
        let candidate = candidates.get_mut(&micro_batches);
        let candidate = candidate.context("that number of micro-batches was not announced")?;
        let (before, start) = (processor_time()?, origin.elapsed());
        for _ in 0..steps {
            candidate.step()?;
        }
        let (end, after) = (origin.elapsed(), processor_time()?);
        answer(&json!({
            "t0": start.as_secs_f64(),
            "t1": end.as_secs_f64(),
            "k": steps,
            "cpu": after - before,
        }))?;
    }
    let losses = candidates
        .iter()
        .map(|(m, candidate)| (m.to_string(), json!(candidate.losses)));
    let mut last = json!({
        "losses": losses.collect::<serde_json::Map<_, _>>(),
        "rss_peak_mb": status("VmHWM"),
        "rss_anon_mb": status("RssAnon"),
    });
    if let (Some(last), Some(base)) = (last.as_object_mut(), base.as_object()) {
        last.extend(base.clone());
    }
    answer(&last)?;
    drop(candidates);
    let world = Arc::into_inner(world).context("a pipeline is left")?;
    Ok(world.leave()?)
}
