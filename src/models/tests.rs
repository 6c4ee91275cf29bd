//! Properties of the layers of all models.

use super::*;
use gpipe_torch::Sequential;

fn every_model() -> Vec<(&'static str, Sequential)> {
    let mut all = models_of_words();
    all.extend(models_of_images());
    all
}

fn models_of_images() -> Vec<(&'static str, Sequential)> {
    let classes = 3;
    vec![
        (
            "amoebanet_d",
            amoebanet_d(AmoebaNetD {
                layers: 3,
                filters: 8,
                classes,
            })
            .unwrap(),
        ),
        (
            "mlp",
            mlp(Mlp {
                inputs: 4,
                hidden: 4,
                depth: 1,
                outputs: classes,
            }),
        ),
        (
            "resnet",
            resnet(ResNet {
                blocks: [1; 4],
                width: 4,
                classes,
            }),
        ),
        (
            "unet",
            unet(UNet {
                depth: 2,
                convolutions: 2,
                width: 4,
                inputs: 1,
                outputs: 1,
                dropout: 0.1,
            }),
        ),
        (
            "vgg16",
            vgg16(Vgg16 {
                width: 2,
                hidden: 4,
                classes,
                dropout: 0.5,
            }),
        ),
    ]
}

fn models_of_words() -> Vec<(&'static str, Sequential)> {
    vec![
        (
            "gpt",
            gpt(Gpt {
                vocab: 7,
                context: 4,
                d_model: 8,
                heads: 2,
                blocks: 1,
                dropout: 0.1,
            }),
        ),
        (
            "llama",
            llama(Llama {
                vocab: 7,
                d_model: 8,
                layers: 1,
                heads: 2,
                kv_heads: 1,
                head_dim: 4,
                d_ff: 8,
                theta: 1e4,
                rope_scaling: RopeScaling::None,
                window: None,
                biases: Biases::default(),
                qk_norm: false,
                norm_eps: 1e-5,
                tied: true,
            })
            .unwrap(),
        ),
        (
            "lstm",
            lstm(Lstm {
                vocab: 7,
                hidden: 4,
                layers: 1,
                dropout: 0.1,
            }),
        ),
        (
            "transformer",
            transformer(Transformer {
                vocab: 7,
                d_model: 8,
                layers: 1,
                heads: 2,
                d_ff: 8,
                dropout: 0.1,
            })
            .unwrap(),
        ),
    ]
}

/// Composite layers once did not pass on the properties of their parts: no stage of a VGG was captured
/// as a CUDA graph.
#[test]
fn all_layers_but_batch_norm_and_the_recurrent_ones_are_graph_safe() {
    for (model, layers) in every_model() {
        for built in gpipe_torch::testing::built(&layers) {
            let case = format!("{model}, layer `{}`", built.name);
            // Only batch norm has buffers.
            let batch_norm = built.has_buffers;
            let recurrent = model == "lstm" && built.name.starts_with("lstm");
            let graph_safe = !batch_norm && !recurrent;
            assert_eq!(built.graph_safe, graph_safe, "{case}");
        }
    }
}
