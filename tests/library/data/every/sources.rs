//! Sources that read files.

use std::fs;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use gpipe::data::{
    Array, Csv, Dataset, Example, Idx, ImageFolder, Lines, SampleOptions, Samples, Tars,
    TfRecordWriter, TfRecords, Tokens, pad,
};
use gpipe::tch::{Kind, Tensor};
use zip::CompressionMethod;

use super::super::samples::{f32s, npy, npz, pictures};
use super::super::tars::tar;
use super::{Chain, chain};

/// Writes the files of all sources.
pub(super) fn files(folder: &Path) {
    Tokens::write(
        &folder.join("t.u16.bin"),
        &(0..90).map(|n| n % 11).collect::<Vec<_>>(),
        11,
    )
    .unwrap();
    fs::write(
        folder.join("images-idx3-ubyte"),
        [
            &[0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[7; 18],
        ]
        .concat(),
    )
    .unwrap();
    let x = Tensor::arange(46, (Kind::Float, gpipe::tch::Device::Cpu)).view([23, 2]);
    Tensor::write_safetensors(&[("x", &x)], folder.join("x.safetensors")).unwrap();
    let array = npy("<f4", "(23, 1)", false, &f32s(&[0.5; 23]));
    npz(
        &folder.join("x.npz"),
        &[("x", array.clone())],
        CompressionMethod::Stored,
    );
    fs::write(folder.join("x.npy"), array).unwrap();
    let mut shard = TfRecordWriter::create(&folder.join("a.tfrecord")).unwrap();
    for n in 0..23 {
        let example = Example::default()
            .with_ints("x", [n, n])
            .with_ints("y", [n % 2]);
        shard.write(&example.encode()).unwrap();
    }
    shard.finish().unwrap();
    let mut gzip = GzEncoder::new(
        fs::File::create(folder.join("a.gz")).unwrap(),
        Compression::fast(),
    );
    std::io::Write::write_all(&mut gzip, &fs::read(folder.join("a.tfrecord")).unwrap()).unwrap();
    gzip.finish().unwrap();
    let lines: Vec<String> = (0..23).map(|n| format!("[{n}, {}]\n", n * n)).collect();
    fs::write(folder.join("a.jsonl"), lines.concat()).unwrap();
    let table: Vec<String> = (0..23).map(|n| format!("{n},{}\n", n % 3)).collect();
    fs::write(folder.join("a.csv"), format!("a,b\n{}", table.concat())).unwrap();
    let parts: Vec<(String, Vec<u8>)> = (0..23)
        .flat_map(|n: u8| {
            [
                (format!("d/{n}.x"), vec![n]),
                (format!("d/{n}.cls"), vec![n % 3]),
            ]
        })
        .collect();
    fs::write(folder.join("a.tar"), tar(&parts)).unwrap();
    pictures(&folder.join("images"));
    #[cfg(feature = "parquet")]
    {
        let rows = super::super::columns::batch(0..23);
        let snappy = parquet::basic::Compression::SNAPPY;
        super::super::columns::parquet(&folder.join("a.parquet"), &rows, 5, snappy);
        super::super::columns::arrow(&folder.join("a.arrow"), &rows, 5, None);
    }
    #[cfg(feature = "object-store")]
    {
        fs::create_dir(folder.join("objects")).unwrap();
        for n in 1..23 {
            fs::write(folder.join(format!("objects/{n:02}")), vec![0; n]).unwrap();
        }
    }
}

/// A chain of each source of [`files`].
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn sources(folder: &Path) -> Vec<Chain> {
    let path = |name: &str| folder.join(name);
    let tokens = path("t.u16.bin");
    let (windows, drawn, documents) = (tokens.clone(), tokens.clone(), tokens);
    let (idx, array) = (path("images-idx3-ubyte"), path("x.safetensors"));
    let (plain, zipped) = (path("x.npy"), path("x.npz"));
    let (records, examples, shards) = (path("a.tfrecord"), path("a.tfrecord"), folder.to_owned());
    let (known, indexes) = (path("a.tfrecord"), path("indexes"));
    let (gzip, own) = (path("a.gz"), path("own"));
    let (lines, json, csv, table) = (
        path("a.jsonl"),
        path("a.jsonl"),
        path("a.csv"),
        path("a.csv"),
    );
    let (tar, images, classes) = (path("a.tar"), path("images"), path("images"));
    let (cached, made) = (path("cache"), path("a.tfrecord"));
    let first = |bytes: Vec<u8>| Ok(i64::from(bytes[bytes.len() - 1]));
    #[cfg_attr(
        not(any(feature = "parquet", feature = "object-store")),
        allow(
            unused_mut,
            reason = "what is built only where somebody asks for it comes behind"
        )
    )]
    let mut all = vec![
        chain("RowOfWindows Tokens::open windows", move || {
            let windows = Tokens::open(&windows).unwrap().windows(4).unwrap();
            windows.shuffle(50, 1).batch(4)
        }),
        chain("RandomWindows random_windows", move || {
            Tokens::open(&drawn)
                .unwrap()
                .random_windows(4, 1)
                .unwrap()
                .batch(4)
        }),
        chain("Documents documents", move || {
            let documents = Tokens::open(&documents).unwrap().documents(3).unwrap();
            documents.batch_with(4, |rows| pad(&rows, 0, 1))
        }),
        chain("Idx Idx::open", move || {
            Dataset::new(Idx::open(&idx).unwrap()).batch(4)
        }),
        chain("Array Array::open", move || {
            Dataset::new(Array::open(&array, "x").unwrap()).batch(4)
        }),
        chain("npy", move || {
            Dataset::new(Array::npy(&plain).unwrap()).batch(4)
        }),
        chain("npz", move || {
            Dataset::new(Array::npz(&zipped, "x").unwrap()).batch(4)
        }),
        chain("TfRecords TfRecords::open", move || {
            Dataset::new(TfRecords::open([&records]).unwrap())
                .map(first)
                .batch(4)
        }),
        chain("in_folder", move || {
            Dataset::new(TfRecords::in_folder(&shards).unwrap())
                .map(first)
                .batch(4)
        }),
        chain("Examples examples", move || {
            let examples = TfRecords::open([&examples]).unwrap().examples();
            examples.map(|own| Ok(own.ints("x")?.to_vec())).batch(4)
        }),
        chain("TfRecords::indexed", move || {
            let records = TfRecords::indexed([&known], &indexes).unwrap();
            Dataset::new(records).map(first).batch(4)
        }),
        chain("TfRecords::decompressed", move || {
            let records = TfRecords::decompressed([&gzip], &own).unwrap();
            Dataset::new(records).map(first).batch(4)
        }),
        chain("FileCache cache_file", move || {
            let records = Dataset::new(TfRecords::open([&made]).unwrap());
            records.cache_file(&cached).unwrap().map(first).batch(4)
        }),
        chain("Lines Lines::open", move || {
            Dataset::new(Lines::open(&lines).unwrap()).batch(4)
        }),
        chain("Lines::json", move || {
            Lines::json::<Vec<i64>>(&json).unwrap().batch(4)
        }),
        chain("Csv Csv::open", move || {
            let rows = Dataset::new(Csv::open(&csv).unwrap());
            rows.map(|row| Ok((row.number("a")? as f32, row.text("b")?.to_owned())))
                .batch(4)
        }),
        chain("Tars Tars::open", move || {
            let items = Dataset::new(Tars::open([&tar]).unwrap());
            let pairs =
                items.map(|item| Ok((item.part("x")?.to_vec(), item.part("cls")?.to_vec())));
            pairs.batch(4)
        }),
        chain("ImageFolder ImageFolder::open", move || {
            let images = ImageFolder::open(&images, [3, 4, 4]).unwrap().augmented(1);
            Dataset::new(images).shuffle(50, 1).batch(3)
        }),
        // Files that `Samples` opens by extension, with a part held out.
        chain("Table RandomPart Samples::open", move || {
            Samples::open(&table, &SampleOptions::default())
                .unwrap()
                .batches(4)
        }),
        chain("Images", move || {
            let options = SampleOptions::default().image(3, 4, 4);
            Samples::open(&classes, &options).unwrap().batches(3)
        }),
        chain("Records", {
            let path = path("a.tfrecord");
            move || {
                Samples::open(&path, &SampleOptions::default())
                    .unwrap()
                    .batches(4)
            }
        }),
    ];
    #[cfg(feature = "parquet")]
    for name in ["a.parquet", "a.arrow"] {
        let path = path(name);
        all.push(chain("Columns Columns::open", move || {
            let rows = Dataset::new(gpipe::data::Columns::open([&path]).unwrap());
            rows.map(|row| row.int("n")).shuffle(9, 1).batch(4)
        }));
    }
    #[cfg(feature = "object-store")]
    {
        let url = format!("file://{}", path("objects").display());
        all.push(chain("Objects Objects::open", move || {
            let objects = Dataset::new(gpipe::data::Objects::open(&url).unwrap());
            objects.map(|own| Ok(own.bytes.len() as i64)).batch(4)
        }));
        let url = format!("file://{}", path("a.jsonl").display());
        let fetched = path("fetched");
        all.push(chain("fetched", move || {
            let objects = gpipe::data::Objects::open(&url).unwrap();
            let lines = objects.fetched(&fetched).unwrap().path;
            Lines::json::<Vec<i64>>(&lines).unwrap().batch(4)
        }));
    }
    all
}
