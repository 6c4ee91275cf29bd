//! Folders of images.

use std::fs;
use std::path::Path;

use gpipe::data::{Normalise, SampleOptions, Samples};
use gpipe::tch::Tensor;
use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage};

use super::{all, floats, refused};

fn options() -> SampleOptions {
    SampleOptions::default().image(3, 8, 8).held_out(0.0)
}

/// Two classes of four images each, in PNG and JPEG, of several sizes.
pub(in crate::data) fn pictures(folder: &Path) {
    for (class, red) in [("dark", 20), ("light", 230)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for number in 0..4_u32 {
            let picture = RgbImage::from_fn(16 + number, 12 + 2 * number, |x, y| {
                Rgb([red, (x * 9) as u8, (y * 9) as u8])
            });
            let (ending, format) = match number % 2 {
                0 => ("png", ImageFormat::Png),
                _ => ("JPG", ImageFormat::Jpeg),
            };
            let path = folder.join(class).join(format!("{number}.{ending}"));
            picture.save_with_format(path, format).unwrap();
        }
    }
    fs::write(folder.join("dark/.DS_Store"), "hidden").unwrap();
    fs::write(folder.join("dark/notes.txt"), "no image").unwrap();
}

fn epochs(folder: &Path, options: &SampleOptions, workers: usize) -> Vec<(Tensor, Tensor)> {
    let samples = Samples::open(folder, options).unwrap();
    let loader = samples.batches(4).workers(workers).load().unwrap();
    loader.take(6).map(Result::unwrap).collect()
}

#[test]
fn classes_are_folders_and_images_what_they_show() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path());
    let samples = Samples::open(folder.path(), &options().normalise(Normalise::None)).unwrap();
    assert_eq!(samples.class_names(), ["dark", "light"]);
    let (x, y) = all(&samples);
    assert_eq!((x.size(), samples.train_len()), (vec![8, 3, 8, 8], 8));
    assert_eq!(floats(&y), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    for (number, red) in (0..8).zip([20.0, 20.0, 20.0, 20.0, 230.0, 230.0, 230.0, 230.0]) {
        let own = floats(&x.get(number).get(0));
        assert!(
            own.iter().all(|own| (own * 255.0 - red).abs() < 6.0),
            "{number}: {own:?}"
        );
        // Green increases to the right, blue downwards.
        let plane =
            |channel: i64, row: i64, column: i64| x.double_value(&[number, channel, row, column]);
        assert!(plane(1, 3, 7) > plane(1, 3, 0) && plane(2, 7, 3) > plane(2, 0, 3));
    }
    let grey = SampleOptions::default().image(1, 4, 6).held_out(0.0);
    assert_eq!(
        all(&Samples::open(folder.path(), &grey).unwrap()).0.size(),
        [8, 1, 4, 6]
    );
    // ImageNet's mean and deviation by default.
    let (scaled, _) = all(&Samples::open(folder.path(), &options()).unwrap());
    let red = x.double_value(&[0, 0, 0, 0]);
    assert!((scaled.double_value(&[0, 0, 0, 0]) - (red - 0.485) / 0.229).abs() < 1e-6);
}

#[test]
fn the_middle_is_cropped_and_scaled_as_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("one");
    fs::create_dir(&class).unwrap();
    // Columns of 8 pixels, each in its own grey, twice as wide as high: the outer ones are cropped.
    let picture = GrayImage::from_fn(64, 32, |x, _| Luma([(x / 8 * 30) as u8]));
    picture.save(class.join("a.png")).unwrap();
    let options = SampleOptions::default()
        .image(1, 8, 8)
        .resize(8)
        .held_out(0.0);
    let (x, _) = all(&Samples::open(folder.path(), &options.normalise(Normalise::None)).unwrap());
    let row: Vec<f64> = floats(&x.get(0).get(0).get(4))
        .iter()
        .map(|own| (own * 255.0).round())
        .collect();
    assert_eq!((row[0], row[7]), (60.0, 150.0), "{row:?}");
    assert!(row.is_sorted(), "{row:?}");
}

#[test]
fn crops_and_flips_depend_on_the_seed_and_the_epoch_alone() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path());
    let one = epochs(folder.path(), &options().seed(3), 1);
    for workers in [2, 4] {
        assert_eq!(epochs(folder.path(), &options().seed(3), workers), one);
    }
    assert_ne!(epochs(folder.path(), &options().seed(4), 1), one);
    // Crops differ between epochs: no image of the second is one of the first.
    let images = |batches: &[(Tensor, Tensor)]| -> Vec<Tensor> {
        let images = batches.iter().flat_map(|(x, _)| x.unbind(0));
        images.collect()
    };
    let (first, second) = (images(&one[..2]), images(&one[2..4]));
    let again = first.iter().filter(|image| second.contains(image)).count();
    assert!(again < 4, "{again} of 8 are the same");
    let plain = epochs(folder.path(), &options().seed(3).augment(false), 1);
    let (first, second) = (images(&plain[..2]), images(&plain[2..4]));
    assert!(first.iter().all(|image| second.contains(image)));
    // A resumed loader has the same crops.
    let samples = Samples::open(folder.path(), &options().seed(3)).unwrap();
    let mut loader = samples.batches(4).load().unwrap();
    let _ = loader.next().unwrap().unwrap();
    let rest = samples
        .batches(4)
        .workers(3)
        .resume(&loader.state())
        .load()
        .unwrap();
    let rest: Vec<_> = rest.take(5).map(Result::unwrap).collect();
    assert_eq!(rest, one[1..]);
}

#[test]
fn parts_of_their_own_are_not_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let (train, val) = (folder.path().join("train"), folder.path().join("val"));
    pictures(&train);
    pictures(&val);
    fs::remove_dir_all(val.join("dark")).unwrap();
    let samples = Samples::open(folder.path(), &options()).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (8, 4));
    let mut held_out = samples.held_out(8).unwrap().load().unwrap();
    assert_eq!(floats(&held_out.next().unwrap().unwrap().1), [1.0; 4]);
    fs::rename(val.join("light"), val.join("bright")).unwrap();
    refused(
        folder.path(),
        &options(),
        &["val/bright", "no class `bright`", "`dark`"],
    );
}

#[test]
fn a_broken_image_is_named_when_its_turn_comes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fails = |name: &str, bytes: &[u8], wanted: &str| {
        let _ = fs::remove_dir_all(folder.join("dark"));
        pictures(folder);
        fs::write(folder.join(name), bytes).unwrap();
        let samples = Samples::open(folder, &options().skip_bad(1)).unwrap();
        let loader = samples.in_order(2).load().unwrap();
        let error = loader
            .map(|batch| batch.map(|_| ()))
            .find_map(Result::err)
            .unwrap();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(wanted), "{text}");
    };
    pictures(folder);
    let [png, jpeg] = ["dark/0.png", "dark/1.JPG"].map(|name| fs::read(folder.join(name)).unwrap());
    fails("dark/0.png", &png[..png.len() / 2], "cannot be read");
    fails("dark/1.JPG", &jpeg[..jpeg.len() - 40], "cut off");
    fails("dark/0.png", b"", "the file is empty");
    fails("dark/0.png", b"GIF89a....", "no JPEG or PNG");
    // A header of 2^31 pixels each way, with a valid checksum.
    let mut huge = png.clone();
    huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let sum = crc32(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    fails("dark/0.png", &huge, "dark/0.png");
}

/// The checksum of PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

#[test]
fn folders_that_are_no_classes_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    refused(
        folder,
        &options(),
        &["nothing in this folder to train on", "x.npy", ".csv"],
    );
    pictures(folder);
    fs::create_dir(folder.join("empty")).unwrap();
    refused(folder, &options(), &["empty", "no image"]);
    fs::write(folder.join("empty/a.webp"), "RIFF").unwrap();
    refused(folder, &options(), &["a.webp", "only .jpg, .jpeg and .png"]);
    fs::remove_dir_all(folder.join("empty")).unwrap();
    fs::write(folder.join("b.png"), "x").unwrap();
    refused(folder, &options(), &["b.png", "in no folder of a class"]);
}

/// One channel of the image that `save` writes, from 0 to 255.
fn grey(save: impl FnOnce(&Path)) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("one");
    fs::create_dir(&class).unwrap();
    save(&class.join("a.png"));
    let options = SampleOptions::default().image(1, 2, 4).resize(2);
    let options = options.held_out(0.0).normalise(Normalise::None);
    let (x, _) = all(&Samples::open(folder.path(), &options).unwrap());
    floats(&x)
        .into_iter()
        .map(|own| (own * 255.0).round())
        .collect()
}

/// Regression test: red, green and blue gave 54, 182 and 18, by BT.709, which differs from PyTorch's inputs.
#[test]
fn grey_has_the_numbers_of_pillow() {
    // From `Image.new("RGB", (1, 1), colour).convert("L")`, Pillow 13.0.
    let known = [
        ([255, 0, 0], 76.0),
        ([0, 255, 0], 150.0),
        ([0, 0, 255], 29.0),
        ([255, 255, 255], 255.0),
        ([12, 200, 99], 132.0),
        ([1, 2, 3], 2.0),
        ([200, 100, 50], 124.0),
        ([77, 77, 77], 77.0),
    ];
    let own = grey(|path| {
        let colour = |x: u32, y: u32| Rgb(known[(y * 4 + x) as usize].0);
        RgbImage::from_fn(4, 2, colour).save(path).unwrap();
    });
    assert_eq!(own, known.map(|(_, wanted)| wanted));
}

/// Transparent pixels count as opaque, and 16-bit values by their upper eight bits.
#[test]
fn transparency_is_dropped_and_sixteen_bits_are_halved() {
    type Of<T> = image::ImageBuffer<T, Vec<<T as image::Pixel>::Subpixel>>;

    let wanted = [0.0, 1.0, 2.0, 127.0, 128.0, 200.0, 254.0, 255.0];
    let value = |x: u32, y: u32| wanted[(y * 4 + x) as usize] as u8;
    // Rounding the lower bits would increase some values.
    let wide = |x, y| u16::from(value(x, y)) << 8 | 0xff;
    let own = grey(|path| {
        Of::from_fn(4, 2, |x, y| image::LumaA([value(x, y), 7]))
            .save(path)
            .unwrap();
    });
    assert_eq!(own, wanted, "grey with transparency");
    let own = grey(|path| {
        let pixel = |x, y| image::Rgba([value(x, y), value(x, y), value(x, y), 0]);
        Of::from_fn(4, 2, pixel).save(path).unwrap();
    });
    assert_eq!(own, wanted, "colours with transparency");
    let own = grey(|path| {
        Of::from_fn(4, 2, |x, y| Luma([wide(x, y)]))
            .save(path)
            .unwrap()
    });
    assert_eq!(own, wanted, "grey of 16 bits");
    let own = grey(|path| {
        let pixel = |x, y| Rgb([wide(x, y), wide(x, y), wide(x, y)]);
        Of::from_fn(4, 2, pixel).save(path).unwrap();
    });
    assert_eq!(own, wanted, "colours of 16 bits");
}
