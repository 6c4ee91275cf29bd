//! Runs programs from seeds, and reports those that differ.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gpipe::{settings::Kernels, tch};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::open::{self, NEWLY, REFUSED};
use crate::piped::{self, Fitted};
use crate::program::{After, Program};
use crate::random::programs;
use crate::record::{Difference, Record, differences};
use crate::reference::Reference;

/// Longer than any program takes; a slower one hangs.
const PATIENCE: Duration = Duration::from_mins(2);
/// Failures that are shrunk and reported; the rest is left out.
const TOLD: usize = 10;

thread_local! {
    /// Kernels with which programs run, in plain form and as pipelines.
    pub(crate) static KERNELS: Cell<Kernels> = const { Cell::new(Kernels::Libtorch) };
}

/// Result of a program.
#[derive(Debug)]
pub(crate) enum Outcome {
    Same,
    /// Plain tch cannot run it either.
    Invalid(String),
    Different(String),
}

/// Compares a pipeline's run of a program with the plain one.
pub(crate) fn outcome(program: &Program) -> Outcome {
    let (program, (done, wait)) = (program.clone(), mpsc::channel());
    let kernels = KERNELS.get();
    let worker = thread::spawn(move || {
        KERNELS.set(kernels);
        let _scope = kernels.scope().unwrap();
        let outcome = match plainly(&program) {
            Err(why) => Outcome::Invalid(why),
            Ok(wanted) => match compared(&program, &wanted) {
                Ok(()) => Outcome::Same,
                Err(how) if how.contains(REFUSED) || how.contains(NEWLY) => Outcome::Invalid(how),
                Err(how) => Outcome::Different(how),
            },
        };
        done.send(outcome).unwrap();
    });
    match wait.recv_timeout(PATIENCE) {
        Ok(outcome) => {
            worker.join().unwrap();
            outcome
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Outcome::Different("hangs".to_owned()),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Ok(()) => Outcome::Different("nothing came".to_owned()),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map_or("a panic", |text| text);
                Outcome::Different(format!("panicked: {text}"))
            }
        },
    }
}

/// Compares the pipeline's run with the plain one.
fn compared(program: &Program, (wanted, loose): &(Record, bool)) -> Result<(), String> {
    let piped = |program: &Program| piped::record(program).map_err(|error| format!("{error:#}"));
    let got = piped(program)?;
    let found = differences(&got, wanted);
    if found.is_empty() {
        return Ok(());
    }
    let updates = program.steps.contains(&After::Update);
    if *loose && updates && found.iter().any(|one| one.small) {
        // Updates amplify rounding differences, so this runs without them.
        let mut program = program.clone();
        program.steps.fill(After::Keep);
        return compared(&program, &plainly(&program)?);
    }
    if !*loose || !found.iter().all(|one| one.small) {
        return Err(lines(&found));
    }
    // The library has its own order of sums, which must be the same for all settings.
    match differences(&got, &piped(&program.uncut())?) {
        none if none.is_empty() => Ok(()),
        some => Err(format!(
            "unlike the pipeline of one stage:\n{}",
            lines(&some)
        )),
    }
}

fn lines(found: &[Difference]) -> String {
    let texts: Vec<_> = found.iter().map(|one| one.text.as_str()).collect();
    texts.join("\n")
}

/// Expected results of a program, and whether only up to rounding; or the reason why plain tch cannot run it.
fn plainly(program: &Program) -> Result<(Record, bool), String> {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    // On libtorch's errors, operations with numbers panic in spite of their `Result`: tch drops the number
    // before fetching the error.
    let run = || {
        let reference = Reference::new(program);
        let record = reference.record()?;
        anyhow::Ok((record, reference.is_loose()))
    };
    match panic::catch_unwind(run) {
        Ok(record) => record.map_err(|error| first_line(format!("{error:#}"))),
        Err(panic) => Err(first_line(text(panic.as_ref()))),
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| "a panic".to_owned())
}

/// Sets one thread for the plain loop, and silences tch's panics, which the errors report.
fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The first use of libtorch on a thread sets its number of threads.
        let _ = tch::get_num_threads();
        tch::set_num_threads(1);
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let of_tch = |place: &panic::Location<'_>| place.file().contains("/tch-");
            if !info.location().is_some_and(of_tch) {
                told(info);
            }
        }));
    });
}

/// Runs the program of a seed. Returns whether it could be run, or the shrunk program that differs.
fn shrunk(seed: u64) -> Result<bool, Box<(Program, String)>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tree = programs().new_tree(&mut runner).unwrap();
    let first = tree.current();
    let outcome = |program: &Program| match open::in_program(program) {
        Some(why) => Outcome::Invalid(why.to_owned()),
        None => outcome(program),
    };
    let test = |program: Program| match outcome(&program) {
        Outcome::Same => Ok(()),
        Outcome::Invalid(why) => Err(TestCaseError::reject(why)),
        Outcome::Different(how) => Err(TestCaseError::fail(how)),
    };
    match runner.run_one(tree, test) {
        Ok(valid) => Ok(valid),
        Err(TestError::Fail(why, program)) => Err(Box::new((program, why.to_string()))),
        Err(TestError::Abort(why)) => Err(Box::new((first, why.to_string()))),
    }
}

/// Describes a failure.
pub(crate) fn report(program: &Program, how: &str) -> String {
    let reference = Reference::new(program);
    let _ = panic::catch_unwind(AssertUnwindSafe(|| reference.record()));
    let notes = reference.notes.borrow().join("\n");
    let fitted = Fitted::new(program);
    format!("{how}\n{program:#?}\n{fitted}\nin the plain loop, first micro-batch:\n{notes}")
}

/// Runs a program that plain tch can run.
pub(crate) fn one(program: &Program) {
    begin();
    match outcome(program) {
        Outcome::Same => {}
        Outcome::Invalid(why) => panic!("plain tch cannot run it: {why}"),
        Outcome::Different(how) => panic!("{}", report(program, &how)),
    }
}

/// Runs the programs of these seeds with these kernels.
pub(crate) fn all(seeds: Range<u64>, kernels: Kernels) {
    begin();
    let began = Instant::now();
    let (next, valid) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let work = || {
        KERNELS.set(kernels);
        while failures.lock().unwrap().len() < TOLD {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match shrunk(seed) {
                Ok(one) => _ = valid.fetch_add(u64::from(one), Ordering::Relaxed),
                Err(failure) => {
                    let (program, how) = *failure;
                    println!("seed {seed}: {}", report(&program, &how));
                    failures.lock().unwrap().push(seed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let (valid, count) = (valid.into_inner(), seeds.end - seeds.start);
    println!(
        "{valid} of {count} programs compared in {:?}",
        began.elapsed()
    );
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "seeds that differ: {failures:?}");
    assert!(valid * 3 > count, "plain tch refuses most programs");
}
