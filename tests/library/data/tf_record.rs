//! TFRecord shards, intact and damaged, and those of another writer.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gpipe::data::{DataError, Dataset, Example, Place, Source, TfRecordWriter, TfRecords};
use proptest::prelude::*;

use super::{all, says};

/// A file written by `tests/fixtures/tf_record.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tf_record")
        .join(name)
}

/// Writes shards whose records are their own numbers; returns the positions of the records.
fn shards(folder: &Path, count: usize, records: usize) -> Vec<(PathBuf, Vec<u64>)> {
    let mut next = 0;
    let shard = |shard| {
        let path = folder.join(format!("part-{shard:03}.tfrecord"));
        let mut writer = TfRecordWriter::create(&path).unwrap();
        let (mut starts, mut end) = (Vec::new(), 0);
        for _ in 0..records {
            starts.push(end);
            let data = [next as u8; 5].repeat(1 + next % 3);
            end += writer
                .write(&[&(next as u64).to_le_bytes()[..], &data].concat())
                .unwrap();
            next += 1;
        }
        writer.finish().unwrap();
        (path, starts)
    };
    (0..count).map(shard).collect()
}

#[allow(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "as a loader's map is"
)]
fn number(record: Vec<u8>) -> anyhow::Result<i64> {
    Ok(i64::from_le_bytes(*record.first_chunk().unwrap()))
}

fn flip(path: &Path, byte: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[byte as usize] ^= 0x04;
    fs::write(path, bytes).unwrap();
}

#[test]
fn the_records_of_another_writer_are_read() {
    let names = [
        "examples-00000-of-00002.tfrecord",
        "examples-00001-of-00002.tfrecord",
    ];
    let records = TfRecords::open(names.map(fixture)).unwrap();
    assert!(records.verify().is_empty());
    let examples = records.examples();
    assert_eq!(examples.len(), 7);
    for index in 0..7 {
        let example = examples.get(0, index).unwrap();
        let label = index as i64;
        assert_eq!(
            example.names().collect::<Vec<_>>(),
            ["image", "label", "name", "weights"]
        );
        assert_eq!(example.int("label").unwrap(), label - 3);
        assert_eq!(
            example.byte_string("image").unwrap(),
            vec![index as u8; index * 40]
        );
        assert_eq!(
            example.bytes("name").unwrap(),
            ["número".as_bytes(), &[b'0' + index as u8]]
        );
        let weights: Vec<f32> = (0..index).map(|place| place as f32 / 4.0).collect();
        assert_eq!(example.floats("weights").unwrap(), weights);
        let error = example.int("lable").unwrap_err().to_string();
        assert!(
            error.contains("no feature `lable`") && error.contains("`label`"),
            "{error}"
        );
    }
}

#[test]
fn numbers_that_are_not_packed_are_read_too() {
    let records = TfRecords::open([fixture("unpacked.tfrecord")]).unwrap();
    let example = records.examples().get(0, 0).unwrap();
    assert_eq!(example.ints("ids").unwrap(), [1, -1, 1 << 40]);
    assert_eq!(example.floats("x").unwrap(), [0.5, -2.0]);
}

/// Written by `tests/fixtures/tensorflow_records.py`.
#[test]
fn what_tensorflow_itself_wrote_is_read_and_written_the_same() {
    let path = fixture("tensorflow.tfrecord");
    let records = TfRecords::open([&path]).unwrap();
    assert!(records.verify().is_empty());
    assert_eq!(records.len(), 7);
    for index in 0..5 {
        let example = Example::decode(&records.get(0, index).unwrap()).unwrap();
        let label = (-1000_i64).pow(index as u32);
        assert_eq!(example.int("label").unwrap(), label);
        let x = index as f32;
        assert_eq!(example.floats("x").unwrap(), [x, x + 0.5]);
        let name = format!("whale {index}");
        assert_eq!(example.byte_string("name").unwrap(), name.as_bytes());
        assert!(example.ints("none").unwrap().is_empty());
        assert_eq!(Example::decode(&example.encode()).unwrap(), example);
    }
    assert_eq!(records.get(0, 5).unwrap(), b"");
    assert_eq!(records.get(0, 6).unwrap(), [0xff; 3000]);

    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let mut writer = TfRecordWriter::create(&copy).unwrap();
    for index in 0..7 {
        writer.write(&records.get(0, index).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(fs::read(copy).unwrap(), fs::read(&path).unwrap());

    // A flipped bit in TensorFlow's checksums, or in the data beneath them, is noticed.
    let whole = fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged.tfrecord");
    for byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[byte] ^= 0x10;
        fs::write(&damaged, bytes).unwrap();
        let bad = TfRecords::open([&damaged]).unwrap().verify();
        let [error] = &bad[..] else {
            panic!("byte {byte}: {bad:?}");
        };
        says(error, &["damaged.tfrecord, byte "]);
    }
}

/// Byte for byte the other writer's file for the same records.
#[test]
fn what_is_written_is_what_the_other_writer_writes() {
    let path = fixture("examples-00000-of-00002.tfrecord");
    let records = TfRecords::open([&path]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let mut writer = TfRecordWriter::create(&copy).unwrap();
    for index in 0..records.len() {
        let bytes = records.get(0, index).unwrap();
        let example = Example::decode(&bytes).unwrap();
        assert_eq!(Example::decode(&example.encode()).unwrap(), example);
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(fs::read(copy).unwrap(), fs::read(path).unwrap());
}

#[test]
fn two_hundred_shards_with_flipped_bits_tell_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let shards = shards(folder.path(), 200, 6);
    // In the length, its checksum, the data, its checksum, of different records.
    let flipped: Vec<(usize, usize, u64)> = (3..200)
        .step_by(11)
        .map(|shard| (shard, shard % 6, [0, 9, 14, 4][shard % 4]))
        .collect();
    let mut wanted = Vec::new();
    for &(shard, record, byte) in &flipped {
        let (path, starts) = &shards[shard];
        flip(path, starts[record] + byte);
        wanted.push(Place::file(path, starts[record]));
    }
    let records = TfRecords::in_folder(folder.path()).unwrap();
    assert_eq!(
        records.len(),
        1200,
        "no record but the damaged ones is lost"
    );
    let bad = records.verify();
    let places: Vec<_> = bad
        .iter()
        .map(|error| error.place().unwrap().clone())
        .collect();
    assert_eq!(places, wanted);

    let batches = |workers, skipped| {
        let records = TfRecords::in_folder(folder.path()).unwrap();
        let numbers = Dataset::new(records).map(number).shuffle(100, 6);
        all(numbers.batch(32).workers(workers).skip_bad(skipped))
    };
    let error = batches(2, 0).unwrap_err();
    says(&error, &[".tfrecord, byte ", "checksum"]);
    assert!(wanted.contains(error.place().unwrap()));
    let error = batches(2, 17).unwrap_err();
    assert!(
        matches!(error, DataError::TooManyBad { bad: 18, .. }),
        "{error}"
    );
    let one = batches(1, 18).unwrap();
    assert_eq!(one.concat().len(), 1200 - 18);
    for workers in [2, 4, 8] {
        assert_eq!(batches(workers, 18).unwrap(), one);
    }
}

/// Shuffled, on several threads, with damaged records, resumed everywhere in two epochs.
#[test]
fn a_damaged_set_goes_on_mid_epoch_with_the_same_batches() {
    let folder = tempfile::tempdir().unwrap();
    let shards = shards(folder.path(), 8, 5);
    for (shard, record, byte) in [(1, 0, 14), (4, 3, 0), (7, 4, 9)] {
        flip(&shards[shard].0, shards[shard].1[record] + byte);
    }
    let batches = |workers, from: Option<&serde_json::Value>| {
        let records = TfRecords::in_folder(folder.path()).unwrap();
        let numbers = Dataset::new(records).map(number).shuffle(usize::MAX, 5);
        let batches = numbers.batch(4).epochs(2).workers(workers).skip_bad(3);
        match from {
            Some(state) => batches.resume(state),
            None => batches,
        }
    };
    let whole = all(batches(1, None)).unwrap();
    assert_eq!(whole.concat().len(), 2 * 37);
    let mut loader = batches(2, None).load().unwrap();
    for taken in 0..=whole.len() {
        let state = loader.state();
        let rest = all(batches(1 + taken % 4, Some(&state))).unwrap();
        assert_eq!(rest, whole[taken..], "after {taken}: {state}");
        assert_eq!(loader.next().is_some(), taken < whole.len());
    }
    assert_eq!(loader.skipped().len(), 6, "three an epoch");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Any single damaged byte loses one record, which is named, and no other.
    #[test]
    fn a_damaged_byte_costs_its_own_record_alone(byte in 0_u64..5000, bits in 1_u8..=255) {
        let folder = tempfile::tempdir().unwrap();
        let (path, starts) = shards(folder.path(), 1, 12).pop().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let byte = byte % bytes.len() as u64;
        bytes[byte as usize] ^= bits;
        fs::write(&path, bytes).unwrap();
        let hit = starts.partition_point(|&start| start <= byte) - 1;
        let records = TfRecords::open([&path]).unwrap();
        prop_assert_eq!(records.len(), 12);
        for index in 0..12 {
            match records.get(0, index) {
                Ok(record) => prop_assert_eq!(number(record).unwrap(), index as i64),
                Err(error) => {
                    prop_assert_eq!(index, hit);
                    prop_assert_eq!(error.place(), Some(&Place::file(&path, starts[hit])));
                }
            }
        }
    }
}

#[test]
fn a_cut_file_has_its_whole_records_and_says_where_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (path, starts) = shards(folder.path(), 1, 4).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 1..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let records = TfRecords::open([&path]).unwrap();
        let begun = starts
            .iter()
            .filter(|&&start| start < length as u64)
            .count();
        assert_eq!(records.len(), begun);
        let ends = starts.contains(&(length as u64));
        match records.get(0, begun - 1) {
            Ok(_) => assert!(ends, "{length}"),
            Err(error) => {
                assert!(!ends, "{length}: {error}");
                assert_eq!(error.place(), Some(&Place::file(&path, starts[begun - 1])));
                says(&error, &["the file ends", "copied whole"]);
            }
        }
    }
}

#[test]
fn what_is_no_set_of_records_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    says(
        &TfRecords::in_folder(folder.path()).unwrap_err(),
        &["no file with .tfrecord"],
    );
    says(
        &TfRecords::open([] as [&Path; 0]).unwrap_err(),
        &["no TFRecord file was named"],
    );
    let path = folder.path().join("a.tfrecord.gz");
    fs::write(&path, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]).unwrap();
    says(
        &TfRecords::open([&path]).unwrap_err(),
        &["a.tfrecord.gz", "gzip", "decompress"],
    );
    says(
        &TfRecords::open(["/nowhere/b"]).unwrap_err(),
        &["cannot read /nowhere/b"],
    );
    fs::write(&path, b"").unwrap();
    says(
        &TfRecords::open([&path]).unwrap_err(),
        &["a.tfrecord.gz is empty"],
    );
    says(
        &TfRecords::open([&path, &path, &path]).unwrap_err(),
        &["a.tfrecord.gz and 2 other files are empty"],
    );
}

/// Regression test: a file with TensorFlow's option ZLIB was searched to its end for a record, then called no
/// TFRecord file.
#[test]
fn records_in_zlib_are_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let [path] = &shards(folder.path(), 1, 50)[..] else {
        unreachable!("one shard was asked for")
    };
    let plain = fs::read(&path.0).unwrap();
    for level in [0, 1, 6, 9] {
        let mut zipped = ZlibEncoder::new(Vec::new(), Compression::new(level));
        zipped.write_all(&plain).unwrap();
        fs::write(&path.0, zipped.finish().unwrap()).unwrap();
        let error = TfRecords::open([&path.0]).unwrap_err();
        says(&error, &["part-000.tfrecord", "zlib", "decompress"]);
    }
    // A file that only begins like it is damaged.
    let mut zipped = ZlibEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(b"a text, and no record at all").unwrap();
    fs::write(&path.0, zipped.finish().unwrap()).unwrap();
    let records = TfRecords::open([&path.0]).unwrap();
    says(&records.get(0, 0).unwrap_err(), &["no TFRecord file"]);
}

#[test]
fn a_record_that_is_no_example_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    let mut writer = TfRecordWriter::create(&path).unwrap();
    let example = Example::default().with_floats("x", [1.0]);
    let second = writer.write(&example.encode()).unwrap();
    writer.write(b"\xff\xff\xff").unwrap();
    writer.finish().unwrap();
    let examples = TfRecords::open([&path]).unwrap().examples();
    assert_eq!(examples.get(0, 0).unwrap(), example);
    let error = examples.get(0, 1).unwrap_err();
    assert_eq!(error.place(), Some(&Place::file(&path, second)));
    says(&error, &["a.tfrecord, byte ", "no tf.train.Example"]);
    let ints = examples.map(|example| Ok(example.int("x")?));
    says(
        &ints.get(0, 0).unwrap_err(),
        &["`x` holds 1 float, not integers"],
    );
}

/// Known shards are opened without reading; changed ones are read in full.
#[test]
fn a_saved_index_opens_a_set_without_walking_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = shards(folder.path(), 3, 50)
        .into_iter()
        .map(|own| own.0)
        .collect();
    let kept = folder.path().join("indexes");
    let wanted = TfRecords::open(&paths).unwrap();
    let indexed = || TfRecords::indexed(&paths, &kept).unwrap();
    let same = |own: &TfRecords| {
        assert_eq!((own.len(), own.identity()), (150, wanted.identity()));
        let mut all = (0..150).map(|n| own.get(0, n).ok() == wanted.get(0, n).ok());
        assert!(all.all(|same| same));
    };
    same(&indexed());
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 3);
    same(&indexed());
    // A damaged index is rebuilt.
    for entry in fs::read_dir(&kept).unwrap() {
        fs::write(entry.unwrap().path(), "no index").unwrap();
    }
    same(&indexed());
    // The same size and modification time, though the records are overwritten.
    let (good, time) = (
        fs::read(&paths[1]).unwrap(),
        fs::metadata(&paths[1]).unwrap().modified().unwrap(),
    );
    fs::write(&paths[1], vec![7; good.len()]).unwrap();
    fs::File::options()
        .write(true)
        .open(&paths[1])
        .unwrap()
        .set_modified(time)
        .unwrap();
    // A scan finds one record, which is damaged; the index has fifty.
    assert_eq!(TfRecords::open(&paths).unwrap().len(), 101);
    let opened = indexed();
    assert_eq!(opened.len(), 150);
    says(
        &opened.get(0, 60).unwrap_err(),
        &["part-001.tfrecord, byte "],
    );
    // A changed shard is scanned again.
    fs::write(&paths[1], &good[..good.len() - 3]).unwrap();
    let opened = indexed();
    says(&opened.get(0, 99).unwrap_err(), &["part-001.tfrecord"]);
    // An index of a damaged shard is not kept.
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 3);
}
