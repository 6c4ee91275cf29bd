//! The model zoo: exact sizes, and models that train alike wherever they are cut.

mod losses;
mod names;
mod pytorch;
mod sizes;
mod training;
mod weightless;

use gpipe::models::zoo::{ModelSpec, Zoo};

fn spec(name: &str, settings: &[&str]) -> ModelSpec {
    Zoo::builtin().spec(name, settings).unwrap()
}

/// A version of each model that is small enough for a test.
fn small(name: &str) -> ModelSpec {
    let settings: &[&str] = match name {
        "mlp" => &["inputs=12", "hidden=16", "depth=3", "outputs=5"],
        "gpt" => &["layers=3", "d_model=16", "heads=2", "context=6", "vocab=11"],
        "llama" => &[
            "layers=3",
            "d_model=16",
            "heads=4",
            "kv_heads=2",
            "d_ff=24",
            "context=6",
            "vocab=11",
        ],
        "transformer" => &[
            "layers=3",
            "d_model=16",
            "heads=2",
            "d_ff=24",
            "context=6",
            "vocab=11",
            "dropout=0.1",
        ],
        "lstm" => &[
            "layers=3",
            "hidden=16",
            "context=6",
            "vocab=11",
            "dropout=0.1",
        ],
        "vgg16" => &[
            "width=4",
            "hidden=16",
            "image=32",
            "classes=5",
            "dropout=0.1",
        ],
        "resnet101" => &[
            "blocks1=1",
            "blocks2=2",
            "blocks3=2",
            "blocks4=1",
            "width=4",
            "image=64",
            "classes=5",
        ],
        "unet" => &["depth=2", "convolutions=2", "width=4", "image=22"],
        "amoebanet-d" => &["layers=3", "filters=8", "image=64", "classes=5"],
        other => panic!("no small `{other}`"),
    };
    spec(name, settings)
}
