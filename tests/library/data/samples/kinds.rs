//! Detection of a path's kind, held-out parts, and the older kinds.

use std::fs;
use std::path::Path;

use gpipe::data::{Example, Normalise, SampleOptions, Samples, TfRecordWriter};
use gpipe::tch::{Device, Kind, Tensor};

use super::numpy::{f32s, i64s, npy};
use super::{all, floats, open, refused};

fn safetensors(path: &Path, count: i64) {
    let x = Tensor::arange(count * 2, (Kind::Float, gpipe::tch::Device::Cpu)).view([count, 2]);
    let y = Tensor::arange(count, (Kind::Int64, gpipe::tch::Device::Cpu)).remainder(3);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], path).unwrap();
}

#[test]
fn what_is_held_out_the_seed_decides_and_nothing_is_in_both_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    safetensors(&path, 50);
    let parts = |options: &SampleOptions| {
        let samples = Samples::open(&path, options).unwrap();
        let train = samples.batches(samples.train_len()).load().unwrap().next();
        let held_out = samples.held_out(50).map(|own| own.load().unwrap().next());
        let first = |x: &Tensor| -> Vec<i64> {
            floats(&x.select(1, 0))
                .iter()
                .map(|own| *own as i64 / 2)
                .collect()
        };
        let mut train = first(&train.unwrap().unwrap().0);
        train.sort_unstable();
        let held_out = held_out.map(|own| first(&own.unwrap().unwrap().0));
        (train, held_out.unwrap_or_default())
    };
    let options = SampleOptions::default().held_out(0.2).seed(5);
    let (train, held_out) = parts(&options);
    assert_eq!((train.len(), held_out.len()), (40, 10));
    let mut both = [&train[..], &held_out].concat();
    both.sort_unstable();
    assert_eq!(both, (0..50).collect::<Vec<_>>());
    assert_eq!(parts(&options), (train, held_out.clone()));
    assert_ne!(parts(&options.clone().seed(6)).1, held_out);
    assert!(parts(&options.held_out(0.0)).1.is_empty());
    refused(
        &path,
        &SampleOptions::default().held_out(1.0),
        &["from 0 to below 1"],
    );
}

#[test]
fn parts_lie_beside_each_other_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    safetensors(&folder.join("train.safetensors"), 9);
    safetensors(&folder.join("val.safetensors"), 4);
    let samples = open(folder).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (9, 4));
    for part in ["train", "test"] {
        let own = folder.join("arrays").join(part);
        fs::create_dir_all(&own).unwrap();
        fs::write(
            own.join("x.npy"),
            npy("<f4", "(2, 1)", false, &f32s(&[1.0, 2.0])),
        )
        .unwrap();
        fs::write(own.join("y.npy"), npy("<i8", "(2,)", false, &i64s(&[0, 1]))).unwrap();
    }
    let samples = open(&folder.join("arrays")).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (2, 2));
}

#[test]
fn idx_files_are_found_by_one_of_them_or_by_their_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/fashion-mnist-small");
    let samples = open(&folder).unwrap();
    assert_eq!(
        (samples.input(), samples.classes()),
        (&[28, 28][..], Some(10))
    );
    let (x, _) = all(&samples.shaped(&[1, 28, 28], &[]).unwrap());
    assert_eq!(x.size()[1..], [1, 28, 28]);
    assert!((x.max().double_value(&[]) - 1.0).abs() < 1e-6);
    let one = open(&folder.join("train-images-idx3-ubyte.gz")).unwrap();
    assert_eq!(one.len(), samples.len());
    let labels = folder.join("train-labels-idx1-ubyte.gz");
    refused(
        &labels,
        &SampleOptions::default(),
        &["one of labels beside it"],
    );
}

#[test]
fn examples_have_numbers_or_images() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, examples: Vec<Example>| {
        let mut shard = TfRecordWriter::create(&folder.join(name)).unwrap();
        for example in examples {
            shard.write(&example.encode()).unwrap();
        }
        shard.finish().unwrap();
    };
    let numbers = |label: i64| {
        Example::default()
            .with_floats("x", [0.5, 1.5])
            .with_ints("y", [label])
    };
    write("train-0.tfrecord", (0..4).map(numbers).collect());
    write("test-0.tfrecord", vec![numbers(2)]);
    let samples = open(folder).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (4, 1));
    assert_eq!((samples.input(), samples.classes()), (&[2][..], Some(4)));
    assert_eq!(floats(&all(&samples).1), [0.0, 1.0, 2.0, 3.0]);

    let mut png = std::io::Cursor::new(Vec::new());
    image::GrayImage::new(9, 9)
        .write_to(&mut png, image::ImageFormat::Png)
        .unwrap();
    let picture = Example::default()
        .with_bytes("image", [png.into_inner()])
        .with_ints("label", [1]);
    let path = folder.join("pictures.tfrecord-00000-of-00001");
    write(
        "pictures.tfrecord-00000-of-00001",
        vec![picture.clone(), picture],
    );
    let samples = Samples::open(&path, &SampleOptions::default().image(3, 4, 4)).unwrap();
    assert_eq!(all(&samples).0.size(), [2, 3, 4, 4]);
    write(
        "odd.tfrecord",
        vec![
            numbers(0),
            Example::default()
                .with_floats("x", [1.0])
                .with_ints("y", [0]),
        ],
    );
    let samples = open(&folder.join("odd.tfrecord")).unwrap();
    let error = samples
        .in_order(2)
        .load()
        .unwrap()
        .next()
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("1 numbers"), "{error}");
    write(
        "other.tfrecord",
        vec![Example::default().with_floats("a", [1.0])],
    );
    refused(
        &folder.join("other.tfrecord"),
        &SampleOptions::default(),
        &["byte 0", "`x` and `y`", "it has `a`"],
    );
}

#[test]
fn a_kind_is_told_by_what_a_file_begins_with() {
    let folder = tempfile::tempdir().unwrap();
    let known = |bytes: &[u8]| {
        let path = folder.path().join("data");
        fs::write(&path, bytes).unwrap();
        Samples::known(&path).unwrap()
    };
    assert!(known(b"\x93NUMPY\x01\x00") && known(b"PK\x03\x04....") && known(&[0, 0, 8, 3, 0]));
    assert!(!known(b"Call me Ishmael.") && !known(b"") && !known(&[0, 0, 1, 0]));
    let text = folder.path().join("data");
    refused(
        &text,
        &SampleOptions::default(),
        &[
            "this is none of",
            ".safetensors",
            ".csv",
            "folder of images",
        ],
    );
}

/// Regression test: three means were required for single-channel images, as in IDX files.
#[test]
fn imagenets_mean_is_that_of_pictures_of_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    let y = Tensor::zeros([4], (Kind::Int64, Device::Cpu));
    let options = SampleOptions::default()
        .held_out(0.0)
        .normalise(Normalise::ImageNet);
    let grey = |x: &Tensor| {
        Tensor::write_safetensors(&[("x", x), ("y", &y)], &path).unwrap();
        let (x, _) = all(&Samples::open(&path, &options).unwrap());
        floats(&x.get(0).reshape([-1]).get(0))[0]
    };
    let bytes = Tensor::full([4, 5, 6], 51, (Kind::Uint8, Device::Cpu));
    let wanted = (0.2 - 0.449) / 0.226;
    assert!((grey(&bytes) - wanted).abs() < 1e-6);
    assert!((grey(&bytes.view([4, 1, 5, 6])) - wanted).abs() < 1e-6);
    let coloured = Tensor::full([4, 3, 5, 6], 51, (Kind::Uint8, Device::Cpu));
    assert!((grey(&coloured) - (0.2 - 0.485) / 0.229).abs() < 1e-6);
    let last = Tensor::full([4, 5, 6, 3], 51, (Kind::Uint8, Device::Cpu));
    Tensor::write_safetensors(&[("x", &last), ("y", &y)], &path).unwrap();
    refused(&path, &options, &["[5, 6, 3]", "put the channels first"]);
}

#[test]
fn whole_numbers_are_any_and_classes_are_not_given_for_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    let x = Tensor::from_slice(&[-7_i64, -100, 4000]);
    let y = Tensor::from_slice(&[0_i64, 255, 1]);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], &path).unwrap();
    let options = SampleOptions::default().held_out(0.0).integers();
    let samples = Samples::open(&path, &options.clone().ignore_index(255)).unwrap();
    assert_eq!(samples.classes(), Some(2));
    let (own, told) = all(&samples);
    assert_eq!((own, told), (x, y));
    assert_eq!(Samples::open(&path, &options).unwrap().classes(), Some(256));
    let wanted = ["3 classes are given", "targets are numbers"];
    refused(&path, &options.classes(3).numbers(), &wanted);
}
