//! This library's loader as a candidate of `benches/peers-input`.
//!
//! Started with `WHAT FORM WORKERS FOLDER SECONDS`, like the candidates in Python. Takes batches for that
//! long and prints a JSON object on a line.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpipe::data::{
    Array, Batches, Dataset, Example, Loader, Made, Row, Rows, Source, TfRecords, Tokens,
};
use gpipe::ndarray::Array2;
use gpipe::tch::{Kind, Tensor};
use serde_json::{Value, json};

const SEED: u64 = 7;
const ROWS: usize = 1_000_000;
const COLUMNS: usize = 32;
/// Number of batches whose first number is printed.
const TOLD: usize = 3;

struct Settings {
    form: String,
    workers: usize,
    folder: PathBuf,
    time: Duration,
}

/// Peak resident memory of the process, in bytes.
fn memory() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib
        .context("no peak in /proc/self/status")?
        .parse::<u64>()?
        << 10)
}

/// Touches code and tables of libtorch that any tensor needs, as importing TensorFlow or PyTorch already
/// does.
fn touch() -> anyhow::Result<()> {
    let two = Tensor::f_zeros([2], (Kind::Float, gpipe::tch::Device::Cpu))?;
    let four = Tensor::f_stack(&[two.f_add_scalar(1.0)?, two], 0)?;
    anyhow::ensure!(four.f_sum(Kind::Float)?.double_value(&[]) > 1.0, "no sum");
    Ok(())
}

/// Takes batches for the given time, after the first one.
fn run<S: Source, B: Send + 'static>(
    settings: &Settings,
    batches: impl FnOnce() -> anyhow::Result<Batches<S, B>>,
    look: impl Fn(&B) -> &Tensor,
) -> anyhow::Result<Value> {
    touch()?;
    let (before, start) = (memory()?, Instant::now());
    let batches = batches()?.workers(settings.workers).prefetch(2).endless();
    let mut loader = batches.load()?;
    let mut take = || -> anyhow::Result<B> { Ok(loader.next().context("no batch")??) };
    let first = |batch: &B| look(batch).reshape([-1]).double_value(&[0]);
    let mut seen = vec![first(&take()?)];
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    let (start, mut taken) = (Instant::now(), 0);
    while start.elapsed() < settings.time {
        let batch = take()?;
        if seen.len() < TOLD {
            seen.push(first(&batch));
        }
        taken += look(&batch).size()[0];
    }
    Ok(json!({
        "items_per_s": taken as f64 / start.elapsed().as_secs_f64(),
        "first_ms": first_ms,
        "growth_mb": (memory()? - before) as f64 / f64::from(1 << 20),
        "seen": seen,
    }))
}

fn shards(folder: &Path, name: &str) -> anyhow::Result<TfRecords> {
    let mut paths = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        if own.starts_with(name) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(TfRecords::open(paths)?)
}

fn small(example: &Example) -> anyhow::Result<(Vec<f32>, i64)> {
    Ok((example.floats("x")?.to_vec(), example.int("y")?))
}

/// Scales as `tf_data.py` does.
fn scaled(byte: u8) -> f32 {
    (f32::from(byte) / 255.0 - 0.45) / 0.225
}

fn images(settings: &Settings) -> anyhow::Result<Value> {
    let examples = || -> anyhow::Result<_> { Ok(shards(&settings.folder, "image")?.examples()) };
    match &settings.form[..] {
        // Stacks bytes, and converts them to floats a batch at a time.
        "batch" => run(
            settings,
            || {
                let bytes = examples()?
                    .map(|example| Ok((example.byte_string("image")?.to_vec(), example.int("y")?)));
                Ok(bytes.batch(32).map(|(x, y)| {
                    let mut x = x.f_to_kind(Kind::Float)?.f_div_scalar_(255.0)?;
                    Ok((x.f_sub_scalar_(0.45)?.f_div_scalar_(0.225)?, y))
                }))
            },
            |(x, _)| x,
        ),
        // Converts bytes to floats while writing the batch.
        "row" => run(
            settings,
            || {
                let table: [f32; 256] = std::array::from_fn(|byte| scaled(byte as u8));
                let rows = examples()?.map(move |example| {
                    let (length, label) = (example.byte_string("image")?.len(), example.int("y")?);
                    let row = Row::new(length, move |row: &mut [f32]| {
                        let bytes = example.byte_string("image").unwrap_or_default();
                        for (to, byte) in row.iter_mut().zip(bytes) {
                            *to = table[usize::from(*byte)];
                        }
                    });
                    Ok((row, label))
                });
                Ok(rows.batch(32))
            },
            |(x, _)| x,
        ),
        // Uses libtorch's operators, an image at a time.
        "tensor" => run(
            settings,
            || {
                let tensors = examples()?.map(|example| {
                    let x = Tensor::f_from_slice(example.byte_string("image")?)?;
                    let mut x = x.f_to_kind(Kind::Float)?.f_div_scalar_(255.0)?;
                    Ok((
                        x.f_sub_scalar_(0.45)?.f_div_scalar_(0.225)?,
                        example.int("y")?,
                    ))
                });
                Ok(tensors.batch(32))
            },
            |(x, _)| x,
        ),
        _ => run(
            settings,
            || {
                let rows = examples()?.map(|example| {
                    let bytes = example.byte_string("image")?;
                    let x: Vec<f32> = bytes.iter().map(|&byte| scaled(byte)).collect();
                    Ok((x, example.int("y")?))
                });
                Ok(rows.batch(32))
            },
            |(x, _)| x,
        ),
    }
}

fn rows(settings: &Settings) -> anyhow::Result<Value> {
    if settings.form == "file" {
        // Reads from the file on demand.
        let batches = || {
            let array = Array::npy(&settings.folder.join("rows.npy"))?;
            Ok(Dataset::new(array).shuffle(usize::MAX, SEED).batch(256))
        };
        return run(settings, batches, |x| x);
    }
    // In memory, as for the other candidates.
    let held = || -> anyhow::Result<_> {
        let path = settings.folder.join("rows.npy");
        let mut file = BufReader::with_capacity(1 << 20, File::open(&path)?);
        // NumPy's header precedes the numbers.
        let numbers = ROWS * COLUMNS;
        let header = file.get_ref().metadata()?.len() - 4 * numbers as u64;
        file.seek(SeekFrom::Start(header))?;
        let (mut held, mut number) = (Vec::with_capacity(numbers), [0; 4]);
        for _ in 0..numbers {
            file.read_exact(&mut number)?;
            held.push(f32::from_le_bytes(number));
        }
        let held = Array2::from_shape_vec((ROWS, COLUMNS), held)?;
        let rows = Dataset::new(Rows::new(held)?);
        Ok(rows.shuffle(usize::MAX, SEED).batch(256))
    };
    run(settings, held, |x| x)
}

fn windows(settings: &Settings) -> anyhow::Result<Value> {
    let batches = || {
        let tokens = Tokens::open(&settings.folder.join("tokens.u16.bin"))?;
        Ok(tokens.random_windows(512, SEED)?.batch(32))
    };
    run(settings, batches, |(x, _)| x)
}

/// D5: batches that take 20 ms to come behind a step that keeps a core busy for 30 ms.
fn slow(settings: &Settings) -> anyhow::Result<Value> {
    let source = Made::new(1 << 20, |item| {
        sleep(Duration::from_millis(20));
        Ok(item as i64)
    });
    let batches = Dataset::new(source).batch(1).workers(settings.workers);
    let mut loader: Loader<Tensor> = batches.prefetch(2).load()?;
    drop(loader.next().context("no batch")??);
    let (begin, mut waited) = (Instant::now(), Duration::ZERO);
    for _ in 0..(settings.time.as_secs_f64() * 20.0) as usize {
        let (start, mut number) = (Instant::now(), 0.5_f64);
        while start.elapsed() < Duration::from_millis(30) {
            number = std::hint::black_box((number * 1.618 + 0.577) % 1.0);
        }
        let start = Instant::now();
        drop(loader.next().context("no batch")??);
        waited += start.elapsed();
    }
    let share = waited.as_secs_f64() / begin.elapsed().as_secs_f64();
    Ok(json!({ "waited_percent": 100.0 * share }))
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, form, workers, folder, seconds] = &words[..] else {
        anyhow::bail!("WHAT FORM WORKERS FOLDER SECONDS");
    };
    let settings = Settings {
        form: form.clone(),
        workers: workers.parse()?,
        folder: folder.into(),
        time: Duration::from_secs_f64(seconds.parse()?),
    };
    let examples = || -> anyhow::Result<_> {
        let examples = shards(&settings.folder, "small")?.examples();
        Ok(examples.map(|example| small(&example)))
    };
    let told = match &what[..] {
        "d1" => run(&settings, || Ok(examples()?.batch(256)), |(x, _)| x)?,
        "d1shuf" => {
            let batches = || Ok(examples()?.shuffle(10_000, SEED).batch(256));
            run(&settings, batches, |(x, _)| x)?
        }
        "d2" => images(&settings)?,
        "d3" => rows(&settings)?,
        "d4" => windows(&settings)?,
        "d5" => slow(&settings)?,
        other => anyhow::bail!("no workload {other}"),
    };
    println!("{told}");
    Ok(())
}
