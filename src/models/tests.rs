//! What layers of all models say of themselves.

use tch::Device;

use super::*;
use crate::torch::Sequential;

fn every_model() -> Vec<(&'static str, Sequential)> {
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
                d_ff: 8,
                theta: 1e4,
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

/// Layers made of layers told only two of four things on, and others said nothing: the host
/// waited after each fp16 step of a VGG, and no CUDA graph was made of any of its stages.
#[test]
fn only_batch_norm_gathers_and_what_gathers_nothing_can_be_replayed() {
    for (model, layers) in every_model() {
        for builder in layers.builders() {
            let built = builder.build(Device::Cpu, 0).unwrap();
            let case = format!("{model}, layer `{}`", built.name);
            // Batch norm is the only one that has buffers.
            let gathers = !built.buffers().is_empty();
            assert_eq!(built.layer.gathers(), gathers, "{case}");
            let recurrent = model == "lstm" && built.name.starts_with("lstm");
            let graph_safe = !gathers && !recurrent;
            assert_eq!(built.layer.graph_safe(), graph_safe, "{case}");
        }
    }
}
