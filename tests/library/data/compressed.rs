//! Compressed TFRecord shards.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use gpipe::data::{Source, TfRecordWriter, TfRecords};

use super::says;

/// Writes these records as a shard, plain and compressed with gzip (in two members) and zlib.
fn shards(folder: &Path, records: &[Vec<u8>]) -> [PathBuf; 3] {
    let paths = ["a.tfrecord", "a.tfrecord.gz", "a.tfrecord.zz"].map(|name| folder.join(name));
    let mut writer = TfRecordWriter::create(&paths[0]).unwrap();
    records.iter().for_each(|record| {
        writer.write(record).unwrap();
    });
    writer.finish().unwrap();
    let plain = fs::read(&paths[0]).unwrap();
    let mut members = Vec::new();
    for part in plain.chunks(plain.len() / 2 + 1) {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(part).unwrap();
        members.extend(gzip.finish().unwrap());
    }
    fs::write(&paths[1], members).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&plain).unwrap();
    fs::write(&paths[2], zlib.finish().unwrap()).unwrap();
    paths
}

fn all(records: &TfRecords) -> Vec<Vec<u8>> {
    (0..records.len())
        .map(|n| records.get(0, n).unwrap())
        .collect()
}

/// Names, sizes and modification times.
fn listed(folder: &Path) -> Vec<(String, u64, std::time::SystemTime)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut all: Vec<_> = entries
        .map(|entry| {
            let about = entry.metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, about.len(), about.modified().unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn compressed_shards_are_decompressed_once_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<Vec<u8>> = (0..50_u8).map(|n| vec![n; 20 * usize::from(n)]).collect();
    let paths = shards(folder.path(), &records);
    let own = folder.path().join("own");
    let three = TfRecords::decompressed(&paths, &own).unwrap();
    assert_eq!(all(&three), [&records[..]; 3].concat());
    assert!(three.verify().is_empty());
    let made = listed(&own);
    assert_eq!(made.len(), 2, "{made:?}");
    assert!(
        made.iter().all(|(name, ..)| name.ends_with(".tfrecord")),
        "{made:?}"
    );
    // The next run finds them there.
    assert_eq!(
        TfRecords::decompressed(&paths, &own).unwrap().identity(),
        three.identity()
    );
    assert_eq!(listed(&own), made);
    // A file changed since then counts as another.
    let others = shards(folder.path(), &records[..7]);
    assert_eq!(
        all(&TfRecords::decompressed(&others[1..2], &own).unwrap()),
        records[..7]
    );
}

#[test]
fn damaged_and_too_small_compressed_files_are_named_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<Vec<u8>> = (0..50_u8).map(|n| vec![n; 20 * usize::from(n)]).collect();
    let [_, gzip, zlib] = shards(folder.path(), &records);
    let own = folder.path().join("own");
    for path in [gzip, zlib] {
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        let place = whole.len() - 30;
        flipped[place] ^= 4;
        // A damaged zlib stream this small cannot be distinguished from other files.
        let is_gzip = path.extension().is_some_and(|own| own == "gz");
        let damaged = [&whole[..whole.len() - 20], &flipped];
        for bytes in damaged.into_iter().filter(|_| is_gzip) {
            fs::write(&path, bytes).unwrap();
            let error = TfRecords::decompressed([&path], &own).unwrap_err();
            let name = path.file_name().unwrap().to_str().unwrap();
            says(&error, &[name, "is damaged or ends"]);
        }
        // Opening it directly gives an error that names the remedy.
        fs::write(&path, &whole).unwrap();
        says(
            &TfRecords::open([&path]).unwrap_err(),
            &["compressed with", "TfRecords::decompressed"],
        );
    }
    // A file of 70 kB that expands to 70 MB.
    let bomb = folder.path().join("zeros.gz");
    let mut to = GzEncoder::new(fs::File::create(&bomb).unwrap(), Compression::default());
    let zeros = vec![0; 1 << 20];
    (0..70).for_each(|_| to.write_all(&zeros).unwrap());
    to.finish().unwrap();
    says(
        &TfRecords::decompressed([&bomb], &own).unwrap_err(),
        &["zeros.gz", "200 times as large"],
    );
    assert_eq!(listed(&own), [], "nothing is left of what failed");
}
