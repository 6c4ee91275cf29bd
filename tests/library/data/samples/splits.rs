//! Folders in common layouts: which files are for training, held out, or neither.

use std::fs;
use std::path::Path;

use gpipe::data::{Example, SampleOptions, TfRecordWriter};
use zip::CompressionMethod;

use super::numpy::i64s;
use super::{all, floats, open, refused};
use crate::data::samples::{f32s, npy, npz};

/// Writes a file of `count` records with the number `mark`.
fn records(path: &Path, mark: f32, count: i64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut shard = TfRecordWriter::create(path).unwrap();
    for label in 0..count {
        let example = Example::default().with_floats("x", [mark]);
        shard
            .write(&example.with_ints("y", [label % 2]).encode())
            .unwrap();
    }
    shard.finish().unwrap();
}

/// Counts of training and held-out samples, and their marks.
fn opened(path: &Path) -> (usize, usize, [f64; 2], String) {
    let samples = open(path).unwrap();
    let train = floats(&all(&samples).0);
    let mut held_out = samples.held_out(100).unwrap().load().unwrap();
    let held_out = floats(&held_out.next().unwrap().unwrap().0);
    for own in [&train, &held_out] {
        assert!(
            own.iter().all(|mark| (mark - own[0]).abs() < 1e-9),
            "{own:?}"
        );
    }
    let lens = (samples.train_len(), samples.held_out_len());
    (
        lens.0,
        lens.1,
        [train[0], held_out[0]],
        samples.notes().join("; "),
    )
}

/// Regression test: the test part of a TensorFlow Datasets folder was trained on.
#[test]
fn parts_of_tensorflow_datasets_are_told_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let pets = folder.path().join("pets");
    records(
        &pets.join("3.0.1/pets-train.tfrecord-00000-of-00002"),
        1.0,
        6,
    );
    records(
        &pets.join("3.0.1/pets-train.tfrecord-00001-of-00002"),
        1.0,
        4,
    );
    records(
        &pets.join("3.0.1/pets-test.tfrecord-00000-of-00001"),
        2.0,
        3,
    );
    fs::write(pets.join("3.0.1/dataset_info.json"), "{}").unwrap();
    for path in [&pets.join("3.0.1"), &pets] {
        assert_eq!(opened(path), (10, 3, [1.0, 2.0], String::new()), "{path:?}");
    }
    records(
        &pets.join("3.0.1/pets-validation.tfrecord-00000-of-00001"),
        3.0,
        2,
    );
    let (train, held_out, marks, said) = opened(&pets);
    assert_eq!((train, held_out, marks), (10, 2, [1.0, 3.0]));
    assert!(
        said.contains("the test part left out (`pets-test.tfrecord-00000-of-00001`)")
            && said.contains("eval --data"),
        "{said}"
    );
}

/// Regression test: a shard without an extension was of unknown kind.
#[test]
fn shards_without_an_ending_are_records() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    records(&folder.join("train-00000-of-01024"), 1.0, 5);
    records(&folder.join("validation-00000-of-00128"), 2.0, 2);
    assert_eq!(opened(folder), (5, 2, [1.0, 2.0], String::new()));
    // Recognized by the name alone, and by the file's first bytes.
    assert_eq!(open(&folder.join("train-00000-of-01024")).unwrap().len(), 5);
    fs::rename(folder.join("train-00000-of-01024"), folder.join("first")).unwrap();
    assert_eq!(open(&folder.join("first")).unwrap().len(), 5);
}

/// Regression test: of `validation` and `test` one was taken by chance, or both, so the best checkpoint was
/// chosen on test data.
#[test]
fn a_test_part_beside_one_for_validation_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let array = |mark: f32, count: usize| {
        let x = npy(
            "<f4",
            &format!("({count}, 1)"),
            false,
            &f32s(&vec![mark; count]),
        );
        let y = npy("<i8", &format!("({count},)"), false, &i64s(&vec![1; count]));
        [x, y]
    };
    let parts = [("train", 1.0, 5), ("test", 2.0, 3), ("validation", 3.0, 2)];
    // Three folders, three files, and arrays of three names in one file.
    let mut one = Vec::new();
    for (name, mark, count) in parts {
        let [x, y] = array(mark, count);
        fs::create_dir_all(folder.join("folders").join(name)).unwrap();
        fs::write(folder.join("folders").join(name).join("x.npy"), &x).unwrap();
        fs::write(folder.join("folders").join(name).join("y.npy"), &y).unwrap();
        fs::create_dir_all(folder.join("files")).unwrap();
        let path = folder.join(format!("files/{name}.npz"));
        npz(
            &path,
            &[("x", x.clone()), ("y", y.clone())],
            CompressionMethod::Stored,
        );
        one.push((format!("x_{name}"), x));
        one.push((format!("y_{name}"), y));
    }
    let one: Vec<(&str, Vec<u8>)> = one
        .iter()
        .map(|(name, own)| (&**name, own.clone()))
        .collect();
    npz(&folder.join("one.npz"), &one, CompressionMethod::Stored);
    for name in ["folders", "files", "one.npz"] {
        let (train, held_out, marks, said) = opened(&folder.join(name));
        assert_eq!((train, held_out, marks), (5, 2, [1.0, 3.0]), "{name}");
        assert!(
            said.contains("left out") && said.contains("test"),
            "{name}: {said}"
        );
    }
}

#[test]
fn a_table_in_parts_may_have_a_name_before_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, mark: i64, rows: usize| {
        let rows: Vec<_> = (0..rows).map(|row| format!("{mark},{}", row % 2)).collect();
        fs::write(
            folder.path().join(name),
            format!("a,y\n{}\n", rows.join("\n")),
        )
        .unwrap();
    };
    write("iris-train.csv", 1, 6);
    write("iris-test.csv", 2, 3);
    write("sample_submission.csv", 3, 3);
    let samples = open(folder.path()).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (6, 3));
    let said = samples.notes().join("; ");
    assert!(
        said.contains("neither trained on nor held out: `sample_submission.csv`"),
        "{said}"
    );
}

/// Regression test: the message was `holds 1 byte string, not floats`.
#[test]
fn a_label_that_is_a_text_is_told_what_labels_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    let mut shard = TfRecordWriter::create(&path).unwrap();
    let example = Example::default().with_floats("x", [1.0]);
    let example = example.with_bytes("y", [b"cat".to_vec()]);
    shard.write(&example.encode()).unwrap();
    shard.finish().unwrap();
    let wanted = [
        "feature `y` is a text (`cat`)",
        "write the number of the class",
    ];
    refused(&path, &SampleOptions::default(), &wanted);
}

#[cfg(feature = "parquet")]
mod columns {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
    use gpipe::data::{DataError, Samples};
    use parquet::basic::Compression;

    use super::super::super::columns::{arrow, parquet};
    use super::*;

    fn batch(mark: f32, rows: i64) -> RecordBatch {
        let x: ArrayRef = Arc::new(Float32Array::from(vec![mark; rows as usize]));
        let y: ArrayRef = Arc::new((0..rows).map(|row| Some(row % 2)).collect::<Int64Array>());
        RecordBatch::try_from_iter([("x", x), ("y", y)]).unwrap()
    }

    /// Numbers of training and held-out samples, without scaling, and the notes.
    fn parts(path: &Path) -> Result<(usize, usize, String), DataError> {
        let samples = Samples::open(path, &SampleOptions::default())?;
        let said = samples.notes().join("; ");
        Ok((samples.train_len(), samples.held_out_len(), said))
    }

    /// Regression test: `NAME-test.arrow` was trained on, and so were the cache files of `map`.
    #[test]
    fn the_cache_of_datasets_has_a_test_part_and_files_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        arrow(&folder.join("imdb-train.arrow"), &batch(1.0, 6), 4, None);
        arrow(&folder.join("imdb-test.arrow"), &batch(2.0, 3), 4, None);
        fs::write(folder.join("dataset_info.json"), "{}").unwrap();
        assert_eq!(parts(folder).unwrap(), (6, 3, String::new()));
        arrow(
            &folder.join("imdb-unsupervised.arrow"),
            &batch(3.0, 9),
            4,
            None,
        );
        arrow(
            &folder.join("cache-0123456789abcdef.arrow"),
            &batch(4.0, 6),
            4,
            None,
        );
        let (train, held_out, said) = parts(folder).unwrap();
        assert_eq!((train, held_out), (6, 3));
        for own in ["imdb-unsupervised.arrow", "cache-0123456789abcdef.arrow"] {
            assert!(said.contains(own), "{said}");
        }
    }

    #[test]
    fn what_datasets_saved_to_disk_is_read_without_its_cache() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for (name, rows) in [("train", 6), ("test", 3)] {
            let own = folder.join(name);
            fs::create_dir(&own).unwrap();
            arrow(
                &own.join("data-00000-of-00001.arrow"),
                &batch(1.0, rows),
                4,
                None,
            );
            arrow(
                &own.join("cache-0123456789abcdef.arrow"),
                &batch(2.0, 9),
                4,
                None,
            );
            fs::write(own.join("state.json"), "{}").unwrap();
        }
        fs::write(folder.join("dataset_dict.json"), "{}").unwrap();
        assert_eq!(parts(folder).unwrap(), (6, 3, String::new()));
        // Regression test: a resumed run did not find a table.
        let samples = open(folder).unwrap();
        let kept = SampleOptions::default().kept(&samples.kept()).unwrap();
        assert_eq!(Samples::open(folder, &kept).unwrap().train_len(), 6);
        let (train, held_out, said) = parts(&folder.join("train")).unwrap();
        assert_eq!((train, held_out), (6, 0));
        assert!(said.contains("cache-0123456789abcdef.arrow"), "{said}");
    }

    #[test]
    fn a_data_set_of_the_hub_is_in_its_folder_data() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(folder.path().join("README.md"), "---\n").unwrap();
        let write = |name: &str, rows: i64| {
            parquet(
                &data.join(name),
                &batch(1.0, rows),
                4,
                Compression::UNCOMPRESSED,
            );
        };
        write("train-00000-of-00002-a09b74b3ef9c3b56.parquet", 4);
        write("train-00001-of-00002-b09b74b3ef9c3b56.parquet", 2);
        write("test-00000-of-00001-c09b74b3ef9c3b56.parquet", 3);
        assert_eq!(parts(folder.path()).unwrap(), (6, 3, String::new()));
        write("validation-00000-of-00001-d09b74b3ef9c3b56.parquet", 2);
        let (train, held_out, said) = parts(folder.path()).unwrap();
        assert_eq!((train, held_out), (6, 2));
        assert!(
            said.contains("the test part left out (`test-00000-of-00001"),
            "{said}"
        );
        let samples = open(folder.path()).unwrap();
        let kept = SampleOptions::default().kept(&samples.kept()).unwrap();
        assert_eq!(Samples::open(folder.path(), &kept).unwrap().train_len(), 6);
    }

    #[test]
    fn a_name_that_begins_like_a_part_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["testimony.arrow", "valley.arrow"] {
            arrow(&folder.path().join(name), &batch(1.0, 3), 4, None);
        }
        let (train, held_out, _) = parts(folder.path()).unwrap();
        assert_eq!((train, held_out), (6, 0));
    }
}
