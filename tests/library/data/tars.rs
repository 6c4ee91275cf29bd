//! Tar shards in WebDataset's format, byte by byte.

use std::fs;
use std::path::Path;

use gpipe::data::{Source, Tars};

use super::says;

/// An entry of this kind, with a valid checksum.
pub(super) fn entry(kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    summed(&mut header);
    let rest = data.len().next_multiple_of(512) - data.len();
    [&header[..], data, &vec![0; rest]].concat()
}

fn summed(header: &mut [u8; 512]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|own| u32::from(*own)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// A tar file of these files.
pub(super) fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let entries = files.iter().map(|(name, data)| entry(b'0', name, data));
    let all: Vec<u8> = entries.flatten().collect();
    [all, vec![0; 1024]].concat()
}

fn opened(folder: &Path, bytes: &[u8]) -> Result<Tars, gpipe::data::DataError> {
    let path = folder.join("a.tar");
    fs::write(&path, bytes).unwrap();
    Tars::open([path])
}

#[test]
fn files_with_one_name_up_to_the_first_dot_are_one_item() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, data: &str| (name.to_owned(), data.as_bytes().to_vec());
    let files = [
        file("./d.1/a.jpg", "one"),
        file("./d.1/a.seg.png", "two"),
        file("./d.1/README", "no part"),
        file("./d.1/.hidden", "no part"),
        file("b.cls", "3"),
        file("d.1/a.cls", "again"),
    ];
    let tars = opened(folder.path(), &tar(&files)).unwrap();
    let items: Vec<_> = (0..tars.len()).map(|n| tars.get(0, n).unwrap()).collect();
    let keys: Vec<&str> = items.iter().map(|item| &*item.key).collect();
    assert_eq!(keys, ["d.1/a", "b", "d.1/a"]);
    assert_eq!(items[0].part("seg.png").unwrap(), b"two");
    let error = items[1].part("jpg").unwrap_err().to_string();
    assert!(
        error.contains("`b` has no part `jpg`; there are `cls`"),
        "{error}"
    );
    let place = tars.place(0, 1).to_string();
    assert!(place.ends_with("a.tar, byte 4608"), "{place}");
}

#[test]
fn long_names_of_gnu_and_of_pax_are_read_and_folders_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("{}/x.txt", "d".repeat(150));
    let pax = format!("{}/y.txt", "e".repeat(150));
    let line = format!(" path={pax}\n");
    let line = format!("{}{line}", line.len() + 3);
    let mut prefixed = entry(b'0', "z.txt", b"z");
    let header: &mut [u8; 512] = prefixed.first_chunk_mut().unwrap();
    header[345..350].copy_from_slice(b"f/g/h");
    summed(header);
    let all = [
        entry(b'5', "folder.d/", b""),
        entry(b'g', "all", b"17 comment=words\n"),
        entry(b'L', "././@LongLink", long.as_bytes()),
        entry(b'0', "short.txt", b"x"),
        entry(b'x', "about", line.as_bytes()),
        entry(b'0', "short.txt", b"y"),
        prefixed,
        vec![0; 1024],
    ];
    let tars = opened(folder.path(), &all.concat()).unwrap();
    let keys = (0..tars.len()).map(|n| tars.get(0, n).unwrap().key);
    let wanted =
        [long.as_str(), &pax, "f/g/h/z.txt"].map(|own| own.trim_end_matches(".txt").to_owned());
    assert_eq!(keys.collect::<Vec<_>>(), wanted);
}

#[test]
fn what_is_no_tar_file_or_damaged_is_named_with_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let opened = |bytes: &[u8]| opened(folder.path(), bytes);
    let file = |name: &str| (name.to_owned(), vec![7; 600]);
    let good = tar(&[file("a.x"), file("b.x")]);
    assert_eq!(opened(&good).unwrap().len(), 2);
    says(
        &opened(&good[..2000]).unwrap_err(),
        &["a.tar, byte 1536", "copied whole"],
    );
    says(
        &opened(&good[..1600]).unwrap_err(),
        &["a.tar, byte 1536", "copied whole"],
    );
    let mut bad = good.clone();
    bad[1540] ^= 1;
    says(
        &opened(&bad).unwrap_err(),
        &["byte 1536", "checksum of this entry's header"],
    );
    says(&opened(&[7; 600]).unwrap_err(), &["byte 0", "no tar file"]);
    says(
        &opened(&[[0x1f, 0x8b].to_vec(), vec![3; 600]].concat()).unwrap_err(),
        &["gzip"],
    );
    says(
        &opened(&tar(&[file("a.x"), file("a.x")])).unwrap_err(),
        &["byte 2048", "two parts `x`"],
    );
    says(&opened(&tar(&[file("README")])).unwrap_err(), &["no item"]);
    // An impossible size, with a valid checksum.
    let mut large = good.clone();
    let header: &mut [u8; 512] = large.first_chunk_mut().unwrap();
    header[124..136].copy_from_slice(&[&[0x80, 0, 0, 0][..], &[0xff; 8]].concat());
    summed(header);
    says(&opened(&large).unwrap_err(), &["byte 0", "copied whole"]);
}

/// Regression test: a shard that WebDataset reads with `sample["jpg"]` had no part `jpg`.
#[test]
fn the_names_of_parts_are_in_small_letters() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| (name.to_owned(), name.as_bytes().to_vec());
    let tars = opened(folder.path(), &tar(&[file("A/0.JPG"), file("A/0.Seg.png")])).unwrap();
    let item = tars.get(0, 0).unwrap();
    assert_eq!(item.parts.keys().collect::<Vec<_>>(), ["jpg", "seg.png"]);
    assert_eq!(item.key, "A/0");
    for name in ["jpg", "JPG"] {
        assert_eq!(item.part(name).unwrap(), b"A/0.JPG");
    }
    let twice = opened(folder.path(), &tar(&[file("0.JPG"), file("0.jpg")]));
    says(&twice.unwrap_err(), &["`0` has two parts `jpg`"]);
}
