//! A convolutional net over three stages learns to tell clothes apart. Run with
//! `cargo run --release --example fashion_mnist`; for the full set give its folder:
//! `-- --data /usr/share/datasets/fashion-mnist --epochs 2`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;
use gpipe::data::{Dataset, Idx, Source};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, optim::AdamW};

#[derive(Parser)]
struct Args {
    /// Folder with the four IDX files, compressed or not.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/fashion-mnist-small"))]
    data: PathBuf,
    /// Epochs over the training images.
    #[arg(long, default_value = "25")]
    epochs: u64,
    /// Threads that read and transform images.
    #[arg(long, default_value = "1")]
    workers: usize,
}

/// Images and labels as bytes.
fn images(folder: &Path, part: &str) -> anyhow::Result<Dataset<impl Source<Item = (Tensor, i64)>>> {
    let open = |kind: &str| -> anyhow::Result<Dataset<Idx>> {
        let plain = folder.join(format!("{part}-{kind}-ubyte"));
        let zipped = plain.with_extension("gz");
        let path = if plain.exists() { plain } else { zipped };
        Ok(Dataset::new(Idx::open(&path)?))
    };
    let pairs = open("images-idx3")?.zip(open("labels-idx1")?)?;
    // Scales from 0 to 1, subtracts the mean, and adds a channel dimension.
    Ok(pairs.map(|(image, label)| {
        let image = (image.f_to_kind(Kind::Float)? / 255.0 - 0.286) / 0.353;
        Ok((image.f_unsqueeze(0)?, i64::try_from(&label)?))
    }))
}

fn model() -> Sequential {
    let conv = |p: &nn::Path<'_>, from, to| {
        let config = nn::ConvConfig {
            padding: 1,
            ..Default::default()
        };
        nn::seq()
            .add(nn::conv2d(p, from, to, 3, config))
            .add_fn(|x| x.relu().max_pool2d_default(2))
    };
    Sequential::new()
        .layer("conv1", move |p| conv(p, 1, 32))
        .layer("conv2", move |p| conv(p, 32, 64))
        .layer("hidden", |p| {
            let linear = nn::linear(p, 64 * 7 * 7, 128, nn::LinearConfig::default());
            nn::func(move |x| x.flatten(1, -1).apply(&linear).relu())
        })
        .layer("head", |p| {
            nn::linear(p, 128, 10, nn::LinearConfig::default())
        })
}

/// The share of correctly classified images.
fn accuracy(pipe: &mut Pipeline, folder: &Path) -> anyhow::Result<f64> {
    let (mut right, mut all) = (0.0, 0);
    for batch in images(folder, "t10k")?.batch(256).load()? {
        let (x, y) = batch?;
        let guess = pipe.forward(x)?.argmax(-1, false);
        right += guess.eq_tensor(&y).sum(Kind::Float).double_value(&[]);
        all += y.size()[0];
    }
    Ok(right / all as f64)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut pipe = Pipeline::new(model(), &[Device::Cpu; 3], 4)?;
    let mut optimizer = Optimizer::new(AdamW {
        lr: 1e-3,
        ..AdamW::default()
    });
    let train = images(&args.data, "train").context("the training images")?;
    // Decoded once; shifted by up to two pixels and mirrored anew in every epoch.
    let train = train
        .cache()
        .shuffle(usize::MAX, 1)
        .map_random(2, |(image, label), random| {
            let image = if random.coin() {
                image.f_flip([2])?
            } else {
                image
            };
            let places = [1, 2].map(|_| random.below(5) as i64 - 2);
            Ok((image.f_roll(places, [1, 2])?, label))
        });
    let mut train = train
        .batch(64)
        .epochs(args.epochs)
        .workers(args.workers)
        .load()?;
    let mut epoch = 0;
    while let Some(batch) = train.next() {
        let (x, y) = batch?;
        let step = pipe.train_step(x, y, Tensor::cross_entropy_for_logits)?;
        optimizer.step(&mut pipe)?;
        if train.epoch() > epoch {
            epoch = train.epoch();
            let waited = train.wait_share() * 100.0;
            println!(
                "epoch {epoch:>2}: loss {:.3}, {waited:.1} % of the time waited for images",
                step.read()?.loss
            );
        }
    }
    let accuracy = accuracy(&mut pipe, &args.data).context("the test images")?;
    println!("test accuracy {:.1} %", accuracy * 100.0);
    Ok(())
}
