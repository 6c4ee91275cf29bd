//! The layers that a file is divided into, and their contents.

use gpipe::tch::Device;
use gpipe::{Pipeline, models};

use crate::fixture::{ALL, DRAWS, Fixture, path};

#[track_caller]
fn assert_layers(name: &str, wanted: &str) {
    let model = models::exported(path(name)).unwrap();
    let names: Vec<_> = model.names().collect();
    assert_eq!(names.join(" "), wanted, "{name}");
}

#[test]
fn layers_are_the_modules_of_the_model() {
    assert_layers(
        "decoder",
        "embed layers.0 layers.1 layers.2 layers.3 norm head",
    );
    assert_layers(
        "encoder",
        "tokens positions norm layers.0 layers.1 layers.2 pooler",
    );
    assert_layers("vit", "patches blocks.0 blocks.1 blocks.2 norm head");
    assert_layers("resnet", "conv1 bn1 layer1.0 layer1.1 layer2.0 layer2.1 fc");
    assert_layers("lstm", "embed lstm1 lstm2 head");
    assert_layers("mlp", "0 3 6 8");
    // Sequentials within a block do not become stages.
    assert_layers("mobilenet", "0 1 2 3 6");
    assert_layers("gpt", "wte wpe h.0 h.1 h.2 ln_f head");
    assert_layers(
        "series",
        "convs.0 norms.0 convs.1 norms.1 convs.2 norms.2 gru head",
    );
    assert_layers(
        "wav2vec",
        "conv1 norm1 conv2 project positions norm layers.0 layers.1 head",
    );
    assert_layers("conformer", "down project blocks.0 blocks.1 blocks.2 head");
    assert_layers(
        "convnext",
        "features.0 features.1.0 features.1.1 features.2.0 features.2.1 features.3.0 features.3.1 head.2",
    );
    assert_layers("unet", "down1 norm down2 middle up join out");
    // Modules of two lists in turn are blocks of neither.
    assert_layers("mixture", "embed norms.0 norms.1 norms.2 norms.3 head");
    assert_layers("judged", "first norm second third head");
    assert_layers("grouped", "embed experts.0 experts.1 head");
    assert_layers("lengths", "m.embed m.mix m.norm m.head");
    for name in ["dropout", "fixed"] {
        assert_layers(name, "0 3 6 8");
    }
}

/// Regression test: a block with two modules of one class was cut inside, and the second block of a list was
/// part of the first, as their common mask is alive between them.
#[test]
fn each_block_of_a_list_is_a_layer() {
    let model = models::exported(path("seq2seq")).unwrap();
    let names: Vec<_> = model.names().collect();
    let blocks = names.iter().filter(|own| own.contains("coder"));
    let wanted = ["encoder.0", "encoder.1", "decoder.0", "decoder.1"];
    assert_eq!(
        blocks.collect::<Vec<_>>(),
        wanted.iter().collect::<Vec<_>>()
    );
}

#[test]
fn parameters_and_buffers_have_the_names_of_the_state_dict() {
    for name in ALL {
        let fixture = Fixture::open(name);
        let mut pipe = Pipeline::new(fixture.model(), &[Device::Cpu; 2], 1).unwrap();
        let mut own: Vec<_> = pipe
            .parameters()
            .unwrap()
            .into_iter()
            .map(|(own, _)| own)
            .collect();
        own.sort();
        let told: Vec<_> = fixture
            .all("grad.")
            .into_iter()
            .map(|(own, _)| own)
            .collect();
        if name != DRAWS {
            assert_eq!(own, told, "{name}");
        }
        for (buffer, _) in pipe.buffers().unwrap() {
            let known = fixture.all("buffer.").iter().any(|(own, _)| *own == buffer);
            assert!(
                known || buffer.ends_with("num_batches_tracked"),
                "{name}: {buffer}"
            );
        }
    }
}

#[test]
fn a_tied_head_is_one_parameter() {
    let model = Fixture::open("decoder").model();
    let variables = model.variables().unwrap();
    let all: u64 = variables.iter().flatten().map(|own| own.bytes()).sum();
    let embedding = 19 * 16;
    assert_eq!(model.parameter_count().unwrap() * 4 + embedding * 4, all);
    let names: Vec<_> = variables
        .iter()
        .flatten()
        .map(|own| own.name().to_owned())
        .collect();
    assert!(names.contains(&"embed.weight".to_owned()), "{names:?}");
    assert!(names.contains(&"head.weight".to_owned()), "{names:?}");
}
