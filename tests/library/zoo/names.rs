//! Names and settings, right and wrong.

use gpipe::models::zoo::{Entry, Zoo, ZooError};

use super::spec;

#[track_caller]
fn refused(name: &str, settings: &[&str]) -> String {
    Zoo::builtin().spec(name, settings).unwrap_err().to_string()
}

#[test]
fn every_model_and_preset_can_be_made_by_its_name() {
    let zoo = Zoo::builtin();
    for name in zoo.names() {
        let spec = zoo.spec(name, [""; 0]).unwrap();
        assert_eq!(spec.name(), name);
        assert!(spec.build().len() > 3, "{name}");
        assert!(!spec.entry().description().is_empty(), "{name}");
        assert!(!spec.entry().origin().is_empty(), "{name}");
    }
}

#[test]
fn settings_go_on_top_of_the_preset() {
    let spec = spec("gpt2-xl", &["layers=2", "d-model=320", "heads = 5"]);
    assert_eq!(
        spec.settings().to_string(),
        "layers=2 d_model=320 heads=5 context=1024 positions=0 vocab=50257 dropout=0"
    );
}

#[test]
fn wrong_names_and_values_say_what_is_right() {
    assert!(refused("gtp2", &[]).contains("there is no model `gtp2`: did you mean `gpt2`?"));
    assert_eq!(
        refused("mlp", &["hiden=3"]),
        "the model `mlp` has no size `hiden`: did you mean `hidden`? It has inputs, hidden, depth, \
         outputs"
    );
    assert_eq!(
        refused("mlp", &["depth"]),
        "`depth` is no setting: write a size and its value, such as `layers=4`"
    );
    let whole = "must be a whole number from 1 to 16777216";
    for value in ["0", "-1", "1.5", "1e9", "nan", "inf"] {
        let setting = format!("hidden={value}");
        assert_eq!(refused("mlp", &[&setting]), format!("`{setting}`: {whole}"));
    }
    assert_eq!(
        refused("mlp", &["depth=4097"]),
        "`depth=4097`: must be a whole number from 1 to 4096"
    );
    assert_eq!(refused("mlp", &["depth=x"]), "`depth=x`: must be a number");
    assert_eq!(
        refused("gpt", &["dropout=1"]),
        "`dropout=1`: must be a number from 0 to below 1"
    );
}

#[test]
fn sizes_that_do_not_go_together_are_refused_before_anything_is_built() {
    for (name, settings, why) in [
        ("gpt", "heads=3", "d_model 128 is not a multiple of heads 3"),
        (
            "llama",
            "kv_heads=3",
            "heads 4 is not a multiple of kv_heads 3",
        ),
        (
            "transformer",
            "heads=3",
            "d_model 128 is not a multiple of heads 3",
        ),
        ("vgg16", "image=31", "image 31 is below 32"),
        (
            "unet",
            "image=16",
            "image 16 is below 32, so that 5 halvings leave nothing",
        ),
        ("amoebanet-d", "layers=4", "layers 4 is not a multiple of 3"),
        (
            "amoebanet-d",
            "image=33",
            "image 33 is not a multiple of 32",
        ),
    ] {
        let expected = format!("the model `{name}` cannot have these sizes: {why}");
        assert_eq!(refused(name, &[settings]), expected);
    }
}

#[test]
fn a_name_is_one_models_alone() {
    let mut zoo = Zoo::builtin();
    let entry = || Entry::new("mine", |_| anyhow::bail!("no sizes fit"));
    zoo.add(entry()).unwrap();
    let error = zoo.add(entry()).unwrap_err();
    assert!(matches!(error, ZooError::Taken { .. }), "{error}");
    let twice = Entry::new("a", |_| anyhow::bail!("none")).preset("a", &[]);
    let error = Zoo::new().add(twice).unwrap_err();
    assert!(matches!(error, ZooError::Taken { .. }), "{error}");
    assert_eq!(
        zoo.spec("mine", [""; 0]).unwrap_err().to_string(),
        "the model `mine` cannot have these sizes: no sizes fit"
    );
}

#[test]
fn a_size_has_a_name_that_can_be_a_flag_and_is_there_once() {
    let refused = |name: &str, other: &str| {
        let entry = Entry::new("mine", |_| anyhow::bail!("none"));
        let entry = entry.count(name, 1, "").count(other, 1, "");
        Zoo::new().add(entry).unwrap_err().to_string()
    };
    for name in ["", "d-model", "Width", "3d", "a=b", "two words"] {
        let error = refused("width", name);
        assert!(
            error.contains(&format!("a size `{name}`: its name must be")),
            "{error}"
        );
    }
    assert_eq!(
        refused("width", "width"),
        "the model `mine` cannot have a size `width`: it has one already"
    );
}
