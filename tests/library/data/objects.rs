//! Object stores: a local folder as a store, and a server in this process that speaks S3.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use gpipe::data::{Csv, DataError, Dataset, Objects, Source};
use gpipe::tch::Tensor;

use super::{all, says};

/// A bucket with objects by name, and the requests made.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    asked: Vec<String>,
}

/// Serves the listing and reading parts of S3; returns the settings for it.
fn s3(objects: &[(&str, &[u8])]) -> (Arc<Mutex<Bucket>>, Vec<(String, String)>) {
    let objects = objects
        .iter()
        .map(|(key, bytes)| ((*key).to_owned(), bytes.to_vec()));
    let bucket = Arc::new(Mutex::new(Bucket {
        objects: objects.collect(),
        asked: Vec::new(),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let own = Arc::clone(&bucket);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = Arc::clone(&own);
            thread::spawn(move || while answer(&stream, &own).is_some() {});
        }
    });
    let settings = [
        ("endpoint", &endpoint[..]),
        ("allow_http", "true"),
        ("access_key_id", "who"),
        ("secret_access_key", "secret"),
        ("region", "us-east-1"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    (bucket, settings.to_vec())
}

/// Reads and answers a request; `None` if there is none left.
fn answer(stream: &TcpStream, bucket: &Mutex<Bucket>) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let headers = lines.map_while(|line| line.ok().filter(|own| !own.is_empty()));
    headers.for_each(drop);
    let mut words = first.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.trim_start_matches("/bucket").trim_start_matches('/');
    let mut own = bucket.lock().unwrap();
    own.asked.push(format!("{method} {key}"));
    let (status, bytes) = if key.is_empty() {
        ("200 OK", listed(&own, query).into_bytes())
    } else {
        match own.objects.get(key) {
            Some(bytes) => ("200 OK", bytes.clone()),
            None => (
                "404 Not Found",
                b"<Error><Code>NoSuchKey</Code></Error>".to_vec(),
            ),
        }
    };
    drop(own);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{:08x}\"\r\n\
         last-modified: Tue, 24 Nov 2026 06:00:00 GMT\r\n\r\n",
        bytes.len(),
        crc(&bytes)
    );
    let mut to = stream;
    to.write_all(head.as_bytes()).ok()?;
    if method != "HEAD" {
        to.write_all(&bytes).ok()?;
    }
    Some(())
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum: u32, byte| {
        sum.wrapping_mul(31).wrapping_add((*byte).into())
    })
}

fn listed(own: &Bucket, query: &str) -> String {
    let prefix = query.split('&').find_map(|own| own.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default().replace("%2F", "/");
    let objects = own
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix));
    let objects = objects.map(|(key, bytes)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-24T06:00:00.000Z</LastModified>\
             <ETag>\"{:08x}\"</ETag><Size>{}</Size></Contents>",
            crc(bytes),
            bytes.len()
        )
    });
    let objects: String = objects.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>")
}

fn numbers(objects: Objects) -> Dataset<impl Source<Item = i64>> {
    Dataset::new(objects).map(|own| Ok(std::str::from_utf8(&own.bytes)?.trim().parse()?))
}

#[test]
fn objects_of_s3_are_items_in_the_order_of_their_names() -> Result<(), DataError> {
    let objects: Vec<(String, String)> = (0..30)
        .map(|n| (format!("train/{n:02}"), format!("{}\n", n * n)))
        .collect();
    let objects: Vec<_> = objects
        .iter()
        .map(|own| (&own.0[..], own.1.as_bytes()))
        .collect();
    let (bucket, settings) = s3(&[&objects[..], &[("other", b"no number")]].concat());
    let open = || Objects::with("s3://bucket/train", settings.clone());
    let own = open()?;
    assert_eq!((own.len(), own.keys().next()), (30, Some("train/00")));
    let squares: Vec<i64> = (0..30).map(|n| n * n).collect();
    assert_eq!(all(numbers(open()?).batch(7))?.concat(), squares);
    let shuffled = |workers| {
        all(numbers(open()?)
            .shuffle(usize::MAX, 3)
            .batch(7)
            .workers(workers))
    };
    assert_eq!(shuffled(1)?, shuffled(4)?);
    // Objects that are removed, or replaced.
    bucket.lock().unwrap().objects.remove("train/07");
    bucket
        .lock()
        .unwrap()
        .objects
        .insert("train/08".to_owned(), b"1000".to_vec());
    says(&own.get(0, 7).unwrap_err(), &["s3://bucket/train/07"]);
    says(
        &own.get(0, 8).unwrap_err(),
        &["s3://bucket/train/08", "4 bytes, and had 3"],
    );
    // Errors of a function name the object.
    let bad = numbers(Objects::with("s3://bucket/other", settings.clone())?);
    says(
        &bad.get(0, 0).unwrap_err(),
        &["s3://bucket/other", "invalid digit"],
    );
    let none = Objects::with("s3://bucket/tra", settings.clone()).unwrap_err();
    says(&none, &["s3://bucket/tra", "no object of that name"]);
    Ok(())
}

#[test]
fn objects_are_fetched_once_and_anew_when_they_change() -> Result<(), DataError> {
    let (bucket, settings) = s3(&[
        ("d/cat/1.txt", b"one"),
        ("d/dog/2.txt", b"two"),
        ("a.csv", b"n\n1\n"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let fetch = |url: &str| Objects::with(url, settings.clone())?.fetched(folder.path());
    let reads = || {
        let mut own = bucket.lock().unwrap();
        std::mem::take(&mut own.asked)
            .iter()
            .filter(|own| own.starts_with("GET ") && own.len() > 4)
            .count()
    };
    let first = fetch("s3://bucket/d/")?;
    assert_eq!(reads(), 2);
    let names = |path: &Path| fs::read_to_string(path).unwrap();
    assert_eq!(names(&first.path.join("cat/1.txt")), "one");
    assert_eq!(
        first.files,
        [first.path.join("cat/1.txt"), first.path.join("dog/2.txt")]
    );
    assert_eq!(fetch("s3://bucket/d/")?, first);
    assert_eq!(reads(), 0, "it was there");
    // A truncated file, as left by a full disk.
    fs::write(&first.files[1], "tw").unwrap();
    assert_eq!(fetch("s3://bucket/d/")?, first);
    assert_eq!((reads(), names(&first.files[1])), (1, "two".to_owned()));
    bucket
        .lock()
        .unwrap()
        .objects
        .insert("d/dog/2.txt".to_owned(), b"TWO".to_vec());
    let second = fetch("s3://bucket/d/")?;
    assert_ne!(second.path, first.path);
    assert_eq!(names(&second.files[1]), "TWO");
    // A single object becomes a file of its name.
    let table = fetch("s3://bucket/a.csv")?;
    assert!(table.path.ends_with("a.csv"));
    assert_eq!(Csv::open(&table.path)?.len(), 1);
    Ok(())
}

#[test]
fn a_folder_is_a_store_too_and_wrong_urls_are_refused() -> Result<(), DataError> {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("in")).unwrap();
    fs::write(folder.path().join("in/b"), "2").unwrap();
    fs::write(folder.path().join("a"), "1").unwrap();
    let url = format!("file://{}", folder.path().display());
    let loader = numbers(Objects::open(&url)?).batch(2).load()?;
    let batches: Vec<Tensor> = loader.collect::<Result<_, _>>()?;
    assert_eq!(batches, [Tensor::from_slice(&[1_i64, 2])]);
    says(&Objects::open("nothing").unwrap_err(), &["nothing: "]);
    says(
        &Objects::open("ftp://host/x").unwrap_err(),
        &["ftp://host/x: "],
    );
    let error = Objects::open(&format!("{url}/none")).unwrap_err();
    says(&error, &["none", "no object"]);
    Ok(())
}
