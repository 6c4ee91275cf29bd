//! A ResNet on a folder of images.

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use serde_json::{Value, json};

use super::{FLAGS, config, fails, printed, trained};
use crate::run::{gpipe, succeeded};

/// Two classes of ten images, in PNG and JPEG.
pub(super) fn pictures(folder: &Path) {
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

pub(super) const RESNET: &str = "--model resnet50 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 4 \
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
    // The number of threads does not change the images.
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

/// Regression test: the run ended at the first damaged image, in the middle of an epoch, and then at the next
/// one.
#[test]
fn all_damaged_images_are_named_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    let cut = |name: &str| {
        let path = folder.join("images").join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let train = format!("train --quiet --steps 4 {FLAGS} --out run {RESNET}");
    cut("dark/3.jpg");
    let one = "error: --data: images/: 1 of 20 images cannot be read: dark/3.jpg (the image is cut off: was \
               it copied whole?); replace it, or move it out of the folder";
    fails(folder, &train, 2, &[one]);
    for other in ["dark/0.png", "light/2.png", "light/4.png", "light/5.jpg"] {
        cut(other);
    }
    fs::write(folder.join("images/light/6.png"), "").unwrap();
    fs::write(folder.join("images/light/7.jpg"), "<html>not found</html>").unwrap();
    let wanted = [
        "7 of 20 images cannot be read: dark/0.png (the image cannot be read",
        "dark/3.jpg",
        "and 2 more; replace them, or move them out of the folder",
    ];
    fails(folder, &train, 2, &wanted);
    assert!(!folder.join("run").exists());
    // Neither the name nor a camera's data after the image's end makes it count as damaged.
    fs::remove_dir_all(folder.join("images")).unwrap();
    pictures(&folder.join("images"));
    let jpeg = folder.join("images/dark/1.jpg");
    let mut bytes = fs::read(&jpeg).unwrap();
    bytes.extend([0; 300]);
    fs::write(folder.join("images/dark/0.png"), &bytes).unwrap();
    printed(folder, &train);
    let mlp = "train --model mlp --data images --out mlp";
    let wanted = [
        "--data images",
        "[channels, height, width]",
        "; for this data: `gpipe-rs train --model resnet50 --image 64 --data images`",
    ];
    fails(folder, mlp, 2, &wanted);
}

/// Damages an image except for its first and last bytes.
fn spoil(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8].copy_from_slice(b"spoilt!!");
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_image_that_only_decoding_finds_damaged_costs_no_step_and_can_be_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    spoil(&folder.join("images/light/4.png"));
    let resnet = RESNET.replace("--held-out 0.2", "--held-out 0");
    let of = |out: &str, more: &str| {
        let flags = FLAGS.replace("--batch 8", "--batch 4");
        format!(
            "train --quiet --json --warmup 1 --threads-per-stage 1 {flags} {resnet} --steps 9 \
             --out {out} {more}"
        )
    };
    let wanted = [
        "images/light/4.png: the image cannot be read",
        "; the run is saved after step 4: put the file back as it was, or leave it out with `train \
         --resume run --set data.skip_bad=N`",
    ];
    fails(folder, &of("run", ""), 1, &wanted);
    assert_eq!(super::losses(folder, "run").len(), 4);
    // Resumed, it has the bits of a run that skipped the image from the start, also with another cut.
    let skip = "--set data.skip_bad=1";
    let (_, said) = succeeded(gpipe(folder, &of("whole", skip)), "train");
    let warning = "warning: skipped images/light/4.png: the image cannot be read";
    assert!(said.contains(warning), "{said}");
    let resume = |run: &str| {
        printed(
            folder,
            &format!("train --quiet --resume {run} --steps 9 {skip}"),
        )
    };
    resume("run");
    printed(folder, &of("cut", skip).replace("--steps 9", "--steps 5"));
    resume("cut");
    for run in ["run", "cut"] {
        assert_eq!(
            super::losses(folder, run),
            super::losses(folder, "whole"),
            "{run}"
        );
    }
    let none = of("none", "--set checkpoint.every=0");
    let wanted = ["replace the file or take it away, or leave it out with --set data.skip_bad=N"];
    fails(folder, &none, 1, &wanted);
    // Likewise for images known to be damaged beforehand.
    fs::write(folder.join("images/dark/1.jpg"), "").unwrap();
    fails(
        folder,
        &of("known", ""),
        2,
        &["1 of 20 images cannot be read: dark/1.jpg"],
    );
    let (_, said) = succeeded(
        gpipe(
            folder,
            &of("known", "--set data.skip_bad=2").replace("--quiet", ""),
        ),
        "train",
    );
    let header = "  cannot be read, and are skipped: dark/1.jpg (the file is empty)";
    assert!(said.contains(header), "{said}");
}

/// Regression test: the loss was 0 from the first step, without an explanation.
#[test]
fn a_folder_of_one_class_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("pets"));
    let train = |data: &str| {
        let resnet = RESNET.replace("--data images/", &format!("--data {data}"));
        format!("train --quiet --steps 1 {FLAGS} --out run {resnet}")
    };
    printed(folder, &train("pets"));
    fs::rename(folder.join("run"), folder.join("two")).unwrap();
    fs::create_dir(folder.join("all")).unwrap();
    fs::rename(folder.join("pets"), folder.join("all/pets")).unwrap();
    let wanted = [
        "--data all: there is one class, `pets`, and nothing to tell it from: if the classes are the \
         folders in all/pets, name all/pets",
    ];
    fails(folder, &train("all"), 2, &wanted);
    fs::remove_dir_all(folder.join("all/pets/light")).unwrap();
    let wanted = [
        "one class, `dark`",
        "put the images of another class in a folder beside it",
    ];
    fails(folder, &train("all/pets"), 2, &wanted);
    // Regression test: a command for a model of numbers was suggested, which does not work either.
    let output = gpipe(folder, &train("all/pets"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("for this data"), "{errors}");
    // A run of two classes is still evaluated on images of one, with a note.
    let judged = printed(folder, "eval --run two --data all/pets");
    assert!(
        judged.contains("\nclasses     1 of the model's 2: no sample is of `light`\n"),
        "{judged}"
    );
    let judged = printed(folder, "eval --run two --data all/pets --json");
    let judged: Value = serde_json::from_str(&judged).unwrap();
    assert_eq!(judged["absent_classes"], json!(["light"]));
}

#[test]
fn a_class_that_is_held_out_as_a_whole_and_a_share_of_nothing_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    for number in 1..10 {
        let _ = fs::remove_file(folder.join(format!("images/light/{number}.png")));
        let _ = fs::remove_file(folder.join(format!("images/light/{number}.jpg")));
    }
    let said = |flags: &str| {
        let resnet = RESNET.replace("--held-out 0.2", flags);
        let train = format!("train --steps 1 --batch 2 --micro 1 --devices cpu,cpu {resnet}");
        succeeded(gpipe(folder, &train), "train").1
    };
    // One of 11 images is of the second class: some seed holds it out.
    let whole =
        "  nothing is trained on of `light`: all of it is held out, so take a smaller --held-out";
    let mut seeds = (0..20).map(|seed| said(&format!("--held-out 0.5 --seed {seed}")));
    assert!(seeds.any(|said| said.contains(whole)));
    let none = "  nothing is held out, as a share of 0.05 of 11 is less than one";
    assert!(said("--held-out 0.05").contains(none));
    assert!(!said("--held-out 0").contains("nothing is held out"));
    let evaluated = format!("train --eval-every 1 {FLAGS} {RESNET}").replace("0.2", "0.05");
    fails(
        folder,
        &evaluated,
        2,
        &["the share of --held-out is less than one sample"],
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
