//! A ResNet on a folder of images.

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};

use super::{FLAGS, config, fails, printed, trained};

/// Two classes of ten images, in PNG and JPEG.
fn pictures(folder: &Path) {
    for (class, red) in [("dark", 30), ("light", 220)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for number in 0..10_u32 {
            let picture = RgbImage::from_fn(40 + number, 36, |x, y| {
                Rgb([red, (x * 5) as u8, (y * 6 + number) as u8])
            });
            let ending = ["png", "jpg"][number as usize % 2];
            picture
                .save(folder.join(class).join(format!("{number}.{ending}")))
                .unwrap();
        }
    }
}

const RESNET: &str = "--model resnet50 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 4 \
                      --image 32 --data images/ --held-out 0.2";

#[test]
fn a_resnet_on_a_folder_of_images_is_trained_resumed_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    let judged = trained(folder, RESNET);
    assert_eq!(judged["count"], 4);
    assert_eq!(
        config(folder, "whole")["model"]["classes"].as_integer(),
        Some(2)
    );
    // Another number of threads makes the same images.
    printed(
        folder,
        &format!(
            "train --quiet --warmup 1 --threads-per-stage 1 --steps 6 {FLAGS} {RESNET} --workers 3 --out many"
        ),
    );
    assert_eq!(
        super::losses(folder, "many"),
        super::losses(folder, "whole")
    );
    let other = format!(
        "train --quiet --steps 1 {FLAGS} {RESNET} --augment=false --report r.html --out plain"
    );
    let said = printed(folder, &other);
    assert!(
        said.contains("held-out loss") && !said.contains("per token"),
        "{said}"
    );
    assert!(fs::metadata(folder.join("r.html")).unwrap().len() > 1000);
    assert_ne!(
        super::losses(folder, "plain")[0],
        super::losses(folder, "whole")[0]
    );
    let lines = printed(folder, "eval --run whole --data images");
    assert!(lines.contains("images (20 samples)"), "{lines}");
}

#[test]
fn a_broken_image_ends_the_run_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    let path = folder.join("images/dark/3.jpg");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let train = format!("train --quiet --steps 40 {FLAGS} --out run {RESNET}");
    fails(
        folder,
        &train.replace("--held-out 0.2", "--held-out 0"),
        1,
        &["images/dark/3.jpg", "cut off"],
    );
    let mlp = "train --model mlp --data images --out mlp";
    fails(
        folder,
        mlp,
        2,
        &["--data images", "[channels, height, width]"],
    );
}

#[test]
fn classes_are_no_numbers_to_predict() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    let third = folder.join("images/third");
    fs::create_dir(&third).unwrap();
    fs::copy(folder.join("images/dark/0.png"), third.join("0.png")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("tests/fixtures/exported/resnet.pt2");
    let train = format!("train --quiet --data images --model {}", program.display());
    let wrong = [
        "its targets are 3 classes",
        "--loss mse, which is for numbers",
        "cross-entropy",
    ];
    fails(folder, &format!("{train} --loss mse"), 2, &wrong);
}
