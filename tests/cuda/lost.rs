//! A device that fails at work, or hangs: failures of kernels, copies and graphs give one message with their
//! place, later calls are refused, and the process exits normally.
//!
//! Each case has its own process, since such a device stays unusable.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use gpipe::checkpoint::{Checkpointer, Extras};
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, PipelineBuilder, Sequential, optim::AdamW};

use crate::apart::{self, Ended};
use crate::harness::{LIMIT, Test};
use crate::simulated::{counted, fail};
use crate::support::cross_entropy;

const PART: &str = "parts::goes_on_with_a_failing_device";
const STALLED: &str = "parts::waits_for_a_device_that_never_ends";
const PROGRAM: &str = "parts::names_the_command";
const READ: &str = "parts::reads_from_a_device_that_never_ends";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("lost::by_a_kernel_of_a_plain_step", || {
            each("kernel", "plain")
        }),
        ("lost::by_a_kernel_of_a_step_that_offloads", || {
            each("kernel", "offload")
        }),
        ("lost::by_a_graph", || each("kernel", "graphs")),
        ("lost::by_a_copy", || each("transfer", "plain")),
        ("lost::by_a_copy_of_what_is_offloaded", || {
            each("transfer", "offload")
        }),
        ("lost::a_device_that_never_ends_is_named", stalled),
        ("lost::who_reads_from_a_device_that_never_ends", || {
            read("plain")
        }),
        ("lost::who_reads_what_was_offloaded_there", || {
            read("offload")
        }),
        ("lost::who_reads_what_a_graph_never_makes", || {
            read("graphs")
        }),
        ("lost::train_keeps_its_last_checkpoint", train),
        ("lost::the_command_is_the_one_beside_the_tests", packed),
    ]
}

pub(crate) const PARTS: [Test; 4] = [
    (PART, part),
    (STALLED, stalled_part),
    (READ, read_part),
    (PROGRAM, program_part),
];

const PATIENCE: Duration = Duration::from_secs(1);

fn model() -> Sequential {
    let linear = |out| move |p: &nn::Path<'_>| nn::linear(p, 8, out, nn::LinearConfig::default());
    Sequential::new()
        .layer("one", linear(8))
        .layer("act", |_| nn::func(|x: &Tensor| x.gelu("none")))
        .layer("two", linear(5))
}

fn batch() -> (Tensor, Tensor) {
    let x = Tensor::arange(32, (Kind::Float, Device::Cpu)).view([4, 8]) / 32.0;
    (x, Tensor::arange(4, (Kind::Int64, Device::Cpu)))
}

fn training(case: &str) -> (Pipeline, Optimizer) {
    let (builder, optimizer) = configured(case);
    (builder.build().unwrap(), optimizer)
}

fn configured(case: &str) -> (PipelineBuilder, Optimizer) {
    let builder = Pipeline::builder(model())
        .devices(&[Device::Cuda(0), Device::Cuda(1)])
        .schedule(ScheduleKind::OneFOneB)
        .micro_batches(2);
    let builder = match case {
        "offload" => builder.offload(&[0, 1]).offload_at_least(Bytes(1)),
        "graphs" => builder.cuda_graphs(true),
        _ => builder,
    };
    let optimizer = Optimizer::new(AdamW::default()).offload(case == "offload");
    (builder, optimizer)
}

fn step(pipe: &mut Pipeline, optimizer: &mut Optimizer) -> Result<(), String> {
    let (x, y) = batch();
    let report = pipe
        .train_step(&x, &y, cross_entropy)
        .map_err(|error| error.to_string())?;
    let norm = pipe
        .clip_gradients(1.0)
        .map_err(|error| error.to_string())?;
    optimizer.step(pipe).map_err(|error| error.to_string())?;
    norm.read().map_err(|error| error.to_string())?;
    report.read().map_err(|error| error.to_string())?;
    Ok(())
}

/// Steps before the failing one; graphs are captured during these.
const WARM: usize = 5;
/// Number of places in a step that are tested.
const PLACES: u64 = 6;

/// The arguments of a part, after its name.
fn asked() -> Vec<String> {
    let last = std::env::args().next_back().unwrap();
    last.split(':').map(str::to_owned).collect()
}

/// `kernel:plain:12`: the twelfth kernel of a step fails; 0 only counts the kernels.
fn part() {
    let asked = asked();
    let [what, case, number] = &asked[..] else {
        panic!("{asked:?}")
    };
    let number: u64 = number.parse().unwrap();
    let (mut pipe, mut optimizer) = training(case);
    (0..WARM).for_each(|_| step(&mut pipe, &mut optimizer).unwrap());
    let before = counted(what);
    if number == 0 {
        step(&mut pipe, &mut optimizer).unwrap();
        println!("counted: {}", counted(what) - before);
        return;
    }
    fail(what, number);
    // The host may notice a step later.
    let error = (0..3).find_map(|_| step(&mut pipe, &mut optimizer).err());
    println!("said: {}", error.expect("nothing failed"));
    let (x, y) = batch();
    let later = [
        pipe.train_step(&x, &y, cross_entropy)
            .map(drop)
            .unwrap_err(),
        pipe.forward(&x).map(drop).unwrap_err(),
        pipe.clip_gradients(1.0).map(drop).unwrap_err(),
        optimizer.step(&mut pipe).unwrap_err(),
        pipe.parameters().map(drop).unwrap_err(),
    ];
    for error in later {
        println!("later: {error}");
    }
    drop((pipe, optimizer, x, y));
    println!("came to its end");
}

fn run(what: &str, case: &str, number: u64) -> Ended {
    let asked = format!("{what}:{case}:{number}");
    apart::run(&["--one", PART, &asked], LIMIT).unwrap()
}

fn each(what: &str, case: &str) {
    let counting = run(what, case, 0);
    let number = counting.output.rsplit_once("counted: ");
    let all: u64 = number
        .unwrap_or_else(|| panic!("{}", counting.why()))
        .1
        .trim()
        .parse()
        .unwrap();
    assert!(all > 0, "{}", counting.why());
    let places = all.min(PLACES);
    for place in 1..=places {
        let number = 1 + (place - 1) * (all - 1) / (places - 1).max(1);
        told(
            &run(what, case, number),
            &format!("{what} {number} of {all}, {case}"),
        );
    }
}

/// Checks that a destructor's error names its place: a stage and its action, or the caller. Another stage may
/// have reported it at the same time.
pub(crate) fn is_placed(output: &str, case: &str) {
    let error = "CUDA error: device-side assert triggered";
    let places = output.lines().filter_map(|line| {
        let (place, _) = line.split_once(error)?;
        let first = place.rsplit_once("it was first seen in ");
        Some(first.map_or(place, |(_, place)| place))
    });
    let mut places = places.peekable();
    assert!(places.peek().is_some(), "{case}: {output}");
    let is_one = |place: &str| KNOWN.iter().any(|known| place.starts_with(known));
    assert!(places.all(is_one), "{case}: {output}");
}

/// Places that may notice first.
const KNOWN: [&str; 4] = [
    "stage ",
    "numbers of a step",
    "what the caller does",
    "the numbers of the step",
];

/// Checks that there is one message, and no abort.
fn told(ended: &Ended, case: &str) {
    let lines = || ended.output.lines();
    if ended.code() == Some(1) {
        // A destructor noticed first, which cannot return an error.
        let found = "found out when memory was freed: the process ends, start it anew";
        assert_eq!(
            ended.output.matches(found).count(),
            1,
            "{case}: {}",
            ended.why()
        );
        is_placed(&ended.output, case);
        return;
    }
    assert_eq!(ended.code(), Some(0), "{case}: {}", ended.why());
    let printed: Vec<_> = lines()
        .filter(|line| line.starts_with("a device failed and answers nothing any more"))
        .collect();
    assert_eq!(printed.len(), 1, "{case}: {}", ended.why());
    assert!(
        printed[0].contains("device-side assert triggered"),
        "{case}: {}",
        printed[0]
    );
    assert!(
        KNOWN.iter().any(|place| printed[0].contains(place)),
        "{case}: {}",
        printed[0]
    );
    let later = lines().filter(|line| line.starts_with("later: "));
    let mut later = later.chain(lines().filter(|line| line.starts_with("said: ")));
    assert!(
        later.all(|line| line.contains("start the process anew")),
        "{case}: {}",
        ended.why()
    );
    assert!(
        ended.output.contains("came to its end"),
        "{case}: {}",
        ended.why()
    );
}

/// A stage on the CPU waits for a value that a device never computes.
fn stalled_part() {
    let mut pipe = Pipeline::builder(model())
        .devices(&[Device::Cuda(0), Device::Cpu])
        .micro_batches(2)
        .patience(Duration::from_secs(2))
        .build()
        .unwrap();
    let (x, y) = batch();
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    fail("stall", 2);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    println!("said: {error}");
    drop(pipe);
}

fn stalled() {
    let ended = apart::run(&["--one", STALLED], LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", ended.why());
    for part in [
        "said: device 1, stage 1",
        "micro-batch 0",
        "it has not come back for 2s",
    ] {
        assert!(ended.output.contains(part), "{}", ended.why());
    }
}

/// All stages are on devices: nothing waits before the caller reads.
fn read_part() {
    let case = asked().remove(0);
    let (builder, mut optimizer) = configured(&case);
    let mut pipe = builder.patience(PATIENCE).build().unwrap();
    (0..WARM).for_each(|_| step(&mut pipe, &mut optimizer).unwrap());
    let weights = pipe.parameters().unwrap();
    let weights: Vec<_> = weights
        .into_iter()
        .map(|(name, own)| (name, own.detach().to_device(Device::Cpu)))
        .collect();
    fail("stall", 1);
    let (x, y) = batch();
    let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    let norm = pipe.clip_gradients(1.0).unwrap();
    // A second read waits for the late result again.
    for _ in 0..2 {
        println!("losses: {}", report.read().unwrap_err());
    }
    println!("norm: {}", norm.read().unwrap_err());
    println!("load: {}", pipe.load(&weights).unwrap_err());
    let folder = tempfile::tempdir().unwrap();
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
    let saved = checkpointer.save(&mut pipe, &optimizer, Extras::new(1));
    println!("checkpoint: {}", saved.map(drop).unwrap_err());
    drop((checkpointer, report, norm, pipe, optimizer));
    println!("came to its end");
}

fn read(case: &str) {
    let ended = apart::run(&["--one", READ, case], LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", ended.why());
    let what = |line| match line {
        "losses" => "cuda:1 has not come to the losses of the step",
        "norm" => "cuda:0 has not come to the norm of the gradients",
        "load" => "has not come to the end of what was told before",
        _ => "stage 0, job: it has not come back",
    };
    for (line, count) in [("losses", 2), ("norm", 1), ("load", 1), ("checkpoint", 1)] {
        let begin = format!("{line}: ");
        let lines = ended.output.lines().filter(|own| own.starts_with(&begin));
        let right = lines.filter(|own| {
            own.contains(what(line)) && own.contains("for 1s, which is the patience")
        });
        assert_eq!(right.count(), count, "{line}: {}", ended.why());
    }
    assert!(ended.output.contains("came to its end"), "{}", ended.why());
}

/// The command's binary: on another machine the one packed beside these tests (`make cuda-check`), otherwise
/// the one built with them.
pub(crate) fn program() -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("gpipe-rs");
    if beside.is_file() {
        return beside;
    }
    env!("CARGO_BIN_EXE_gpipe-rs").into()
}

fn program_part() {
    println!("program: {}", program().display());
}

/// Regression test: the packed check worked only on the machine that packed it.
fn packed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let (tests, command) = (folder.join("cuda-tests"), folder.join("gpipe-rs"));
    let own = std::env::current_exe().unwrap();
    if fs::hard_link(&own, &tests).is_err() {
        fs::copy(&own, &tests).unwrap();
    }
    fs::write(&command, "").unwrap();
    let named = Command::new(tests).args(["--one", PROGRAM]).output();
    let named = String::from_utf8(named.unwrap().stdout).unwrap();
    let expected = format!("program: {}", command.display());
    assert!(named.lines().any(|line| line == expected), "{named}");
}

/// The command, on devices with these settings.
fn command(settings: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.env("GPIPE_SIMULATE_GPUS", settings).args(arguments);
    command.output().unwrap()
}

fn train() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let arguments = "train --model mlp --inputs 8 --hidden 16 --depth 2 --outputs 2 --batch 8 --micro 2 \
                     --steps 40 --checkpoint-every 2 --devices cuda:0,cuda:1 --out";
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.push(out);
    let failed = command("2,fail-kernel=400@1", &arguments);
    let words = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{words}");
    // A destructor may notice first.
    let said = ["start the process anew", "the process ends, start it anew"];
    assert!(said.iter().any(|own| words.contains(own)), "{words}");
    if words.contains(said[1]) {
        is_placed(&words, "train");
    }
    // The run resumes from there.
    let resumed = command("2", &["train", "--resume", out, "--steps", "41"]);
    let words = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert_eq!(resumed.status.code(), Some(0), "{words}");
}
