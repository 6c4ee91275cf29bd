//! Every file reader, on files with changed bytes: read or refused, without a panic, and with bounded memory.

use std::fs;
use std::io::Write as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use gpipe::data::{
    Array, Csv, Example, Idx, ImageFolder, Lines, Random, SampleOptions, Samples, Source, Tars,
    TfRecordWriter, TfRecords, Tokens,
};
use gpipe::tch::Tensor;
use serde_json::Value;
use zip::CompressionMethod;

use super::samples::{changed, f32s, npy, npz, pictures};
use super::tars::tar;

/// Set in the process with limited memory.
const LIMITED: &str = "GPIPE_FUZZ_LIMITED";
/// KiB of memory for data: libtorch's own, and the allowance for a file of a few hundred bytes.
const MEMORY: u32 = 700_000;

/// A reader: the file to change, the path to open, and a function that reads all of it.
struct Reader {
    name: &'static str,
    file: PathBuf,
    read: Box<dyn Fn() -> Result<(), String>>,
}

fn all<S: Source>(source: &S) -> Result<(), String> {
    for index in 0..source.len().min(50) {
        source.get(0, index).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn reader(
    name: &'static str,
    file: PathBuf,
    read: impl Fn(&Path) -> Result<(), gpipe::data::DataError> + 'static,
) -> Reader {
    let path = file.clone();
    let read = Box::new(move || read(&path).map_err(|error| error.to_string()));
    Reader { name, file, read }
}

/// Opens a source, and reads it.
fn source<S: Source>(
    name: &'static str,
    file: PathBuf,
    open: impl Fn(&Path) -> Result<S, gpipe::data::DataError> + 'static,
) -> Reader {
    let path = file.clone();
    let read = Box::new(move || all(&open(&path).map_err(|error| error.to_string())?));
    Reader { name, file, read }
}

fn packed(path: PathBuf, bytes: &[u8], gzip: bool) -> PathBuf {
    let file = fs::File::create(&path).unwrap();
    if gzip {
        let mut to = GzEncoder::new(file, Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap();
    } else {
        let mut to = ZlibEncoder::new(file, Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap();
    }
    path
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn readers(folder: &Path) -> Vec<Reader> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let idx = [&[0, 0, 0x0d, 2, 0, 0, 0, 3, 0, 0, 0, 2][..], &[7; 24]].concat();
    let mut shard = TfRecordWriter::create(&folder.join("a.tfrecord")).unwrap();
    for n in 0..5 {
        let example = Example::default()
            .with_ints("y", [n])
            .with_bytes("x", [vec![1; 20]]);
        shard.write(&example.encode()).unwrap();
    }
    shard.finish().unwrap();
    let records = fs::read(folder.join("a.tfrecord")).unwrap();
    let array = npy("<f4", "(3, 2)", false, &f32s(&[0.5; 6]));
    for (name, method) in [
        ("s.npz", CompressionMethod::Stored),
        ("d.npz", CompressionMethod::Deflated),
    ] {
        npz(&folder.join(name), &[("x", array.clone())], method);
    }
    let x = Tensor::from_slice(&[0.5_f32, 1.0]);
    Tensor::write_safetensors(&[("x", &x)], folder.join("x.safetensors")).unwrap();
    let tokens = folder.join("t.bin");
    Tokens::write(&tokens, &(0..30).collect::<Vec<_>>(), 30).unwrap();
    let own = tokens.clone();
    let files: Vec<(String, Vec<u8>)> =
        (0..4_u8).map(|n| (format!("{n}.x"), vec![n; 30])).collect();
    let images = folder.join("images");
    pictures(&images);
    let picture = |name: &str| {
        let images = images.clone();
        let open = move |_: &Path| ImageFolder::open(&images, [3, 4, 4]);
        let file = folder.join("images").join(name);
        source("image", file, open)
    };
    let decompressed = folder.join("decompressed");
    let second = decompressed.clone();
    let clean = move |path: &Path, folder: &Path| {
        let read = TfRecords::decompressed([path], folder);
        // The cache's name has the modification time, which may equal that of the previous file.
        let _ = fs::remove_dir_all(folder);
        read.map(|_| ())
    };
    let again = clean;
    let mut columns = Vec::new();
    #[cfg(feature = "parquet")]
    {
        use super::columns::{arrow, batch, parquet, stream};
        use arrow_ipc::CompressionType;
        use gpipe::data::Columns;
        use parquet::basic::{Compression, ZstdLevel};

        let (all, path) = (batch(0..20), |name: &str| folder.join(name));
        let zstd = Compression::ZSTD(ZstdLevel::default());
        parquet(&path("p.parquet"), &all, 7, Compression::UNCOMPRESSED);
        parquet(&path("s.parquet"), &all, 7, Compression::SNAPPY);
        parquet(&path("z.parquet"), &all, 7, zstd);
        arrow(&path("a.arrow"), &all, 7, None);
        arrow(&path("l.arrow"), &all, 7, Some(CompressionType::LZ4_FRAME));
        arrow(&path("z.arrow"), &all, 7, Some(CompressionType::ZSTD));
        stream(&path("stream.arrow"), &all, 7);
        let cells = |path: &Path| {
            let rows = Columns::open([path])?;
            for index in 0..rows.len().min(50) {
                let row = rows.get(0, index)?;
                for name in ["n", "x", "some", "image.label"] {
                    let _ = row.number(name);
                }
                for name in ["name", "coded", "image.bytes"] {
                    let _ = row.bytes(name);
                }
                let _ = (row.ints("tokens"), row.floats("tokens"));
            }
            Ok(())
        };
        for (name, file) in [
            ("Parquet", "p.parquet"),
            ("Parquet, snappy", "s.parquet"),
            ("Parquet, zstd", "z.parquet"),
            ("Arrow", "a.arrow"),
            ("Arrow, lz4", "l.arrow"),
            ("Arrow, zstd", "z.arrow"),
            ("Arrow's stream", "stream.arrow"),
        ] {
            columns.push(reader(name, path(file), cells));
        }
    }
    let table = b"a,b,\"c,d\"\n1,2.5,x\n3,4e1,\"y\"\"\nz\"\n-1,0,x\n";
    let mut all = vec![
        source("IDX", write("a.idx", &idx), Idx::open),
        source(
            "IDX.gz",
            packed(folder.join("a.idx.gz"), &idx, true),
            Idx::open,
        ),
        source("npy", write("a.npy", &array), Array::npy),
        source("npz", folder.join("s.npz"), |path| Array::npz(path, "x")),
        source("npz, deflated", folder.join("d.npz"), |path| {
            Array::npz(path, "x")
        }),
        source("safetensors", folder.join("x.safetensors"), |path| {
            Array::open(path, "x")
        }),
        source("TFRecord", folder.join("a.tfrecord"), |path| {
            TfRecords::open([path])
        }),
        reader(
            "Example",
            write("one.example", &records[12..records.len() / 5 - 4]),
            |path| {
                let bytes = fs::read(path).unwrap();
                Example::decode(&bytes)
                    .map(|_| ())
                    .map_err(|error| gpipe::data::DataError::Settings(error.to_string()))
            },
        ),
        reader(
            "TFRecord.gz",
            packed(folder.join("a.gz"), &records, true),
            move |path| clean(path, &decompressed),
        ),
        reader(
            "TFRecord, zlib",
            packed(folder.join("a.zlib"), &records, false),
            move |path| again(path, &second),
        ),
        source("CSV", write("a.csv", table), Csv::open),
        reader("table", write("b.csv", table), |path| {
            Samples::open(path, &SampleOptions::default()).map(|_| ())
        }),
        source(
            "lines",
            write("a.txt", b"one\ntwo\r\n\nthr\xc3\xa9\n"),
            Lines::open,
        ),
        source(
            "JSON lines",
            write("a.jsonl", b"{\"a\": [1, 2.5, \"x\"]}\n[null, true]\n"),
            Lines::json::<Value>,
        ),
        source("tar", write("a.tar", &tar(&files)), |path| {
            Tars::open([path])
        }),
        source("tokens", tokens.clone(), |path| {
            Tokens::open(path)?.windows(4)
        }),
        source("tokens' .json", folder.join("t.bin.json"), move |_| {
            Tokens::open(&own)?.windows(4)
        }),
        source("documents", tokens, |path| Tokens::open(path)?.documents(3)),
        picture("dark/0.png"),
        picture("light/1.JPG"),
    ];
    all.append(&mut columns);
    all
}

/// Runs for `FUZZ_SECONDS` (`make fuzz`), two seconds by default, in a process limited to the memory that a
/// file of a few hundred bytes may take. `FUZZ_FIRST` is the first seed, for several such runs; `FUZZ_ONLY`
/// selects readers by a part of their name.
#[test]
fn mutations_for_so_many_seconds_take_little_memory_and_are_read_or_refused() {
    if std::env::var(LIMITED).is_ok() {
        return mutate();
    }
    let name =
        "data::fuzz::mutations_for_so_many_seconds_take_little_memory_and_are_read_or_refused";
    let program = std::env::current_exe().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -d $0 && exec \"$@\"", &MEMORY.to_string()]);
    limited
        .arg(program)
        .args(["--exact", name, "--nocapture", "--test-threads", "1"]);
    let output = limited
        .env(LIMITED, "1")
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("no panic"), "{text}");
    print!("{text}");
}

fn mutate() {
    let more = Vec::<u8>::new().try_reserve_exact(usize::try_from(MEMORY).unwrap() << 10);
    assert!(more.is_err(), "there is no limit here");
    let asked = |name: &str| std::env::var(name).ok();
    let seconds = asked("FUZZ_SECONDS").and_then(|own| own.parse().ok());
    let seconds: f64 = seconds.unwrap_or(2.0);
    let first = asked("FUZZ_FIRST").and_then(|own| own.parse().ok());
    let first: u64 = first.unwrap_or(0);
    let only = asked("FUZZ_ONLY").unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    let mut readers = readers(folder.path());
    readers.retain(|own| own.name.contains(&only));
    let each = Duration::from_secs_f64(seconds / readers.len() as f64);
    assert!(!readers.is_empty(), "no reader is called so: {only}");
    for Reader { name, file, read } in readers {
        let good = fs::read(&file).unwrap();
        read().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (start, mut tried, mut refused) = (Instant::now(), 0_u64, 0_u64);
        while tried < 20 || start.elapsed() < each {
            let bytes = changed(&good, &mut Random::new(first + tried));
            fs::write(&file, &bytes).unwrap();
            let ended = panic::catch_unwind(panic::AssertUnwindSafe(&read));
            let ended = ended.unwrap_or_else(|_| panic!("{name}, seed {}", first + tried));
            if let Err(error) = ended {
                refused += 1;
                assert!(
                    !error.contains("panicked"),
                    "{name}, seed {}: {error}",
                    first + tried
                );
            }
            tried += 1;
        }
        fs::write(&file, &good).unwrap();
        println!("{name}: {tried} mutations, {refused} refused, no panic");
        assert!(refused > 0 || name == "lines", "{name}");
    }
}

/// A megabyte of gzip that declares one and a half gigabytes, and expands to it.
#[test]
fn a_small_compressed_file_takes_no_large_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros-idx1-ubyte.gz");
    let mut to = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
    let size = 300_u32 << 20;
    to.write_all(&[&[0, 0, 8, 1][..], &size.to_be_bytes()].concat())
        .unwrap();
    // The rest does not matter: it is refused for its declared size.
    to.write_all(&vec![0; 1 << 16]).unwrap();
    to.finish().unwrap();
    let error = Idx::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("times as much as the compressed file"),
        "{error}"
    );
}
