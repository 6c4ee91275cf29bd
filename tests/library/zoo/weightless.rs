//! A model's parameters without their values.

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential};

use super::small;
use crate::support::apart::apart;

#[test]
fn variables_are_those_of_the_built_model() {
    for name in [
        "mlp",
        "gpt",
        "llama",
        "transformer",
        "lstm",
        "vgg16",
        "resnet101",
        "unet",
        "amoebanet-d",
    ] {
        let model = small(name).build();
        let mut described = Vec::new();
        for variable in model.variables().unwrap().into_iter().flatten() {
            assert_eq!(variable.kind(), Kind::Float);
            // The pipeline lists tied parameters under their owner's name only.
            if variable.name() != "head.lm_head.weight" {
                let parameter = variable.is_parameter();
                described.push((
                    variable.name().to_owned(),
                    variable.shape().to_vec(),
                    parameter,
                ));
            }
        }
        described.sort();
        let mut pipe = Pipeline::new(model, &[Device::Cpu], 1).unwrap();
        let shape = |of: Vec<(String, Tensor)>, parameter| {
            of.into_iter()
                .map(move |(name, tensor)| (name, tensor.size(), parameter))
        };
        let parameters = shape(pipe.parameters().unwrap(), true);
        let mut built: Vec<_> = parameters
            .chain(shape(pipe.buffers().unwrap(), false))
            .collect();
        built.sort();
        assert_eq!(described, built, "{name}");
    }
}

#[test]
fn weights_that_no_machine_could_hold_are_counted() {
    let side = 1 << 24;
    let model = Sequential::new().layer("huge", move |p| {
        nn::linear(p, side, side, nn::LinearConfig::default())
    });
    let expected = (side * side + side) as u64;
    assert_eq!(model.parameter_count().unwrap(), expected);
    assert_eq!(model.parameter_bytes().unwrap(), [4 * expected]);
}

#[test]
fn a_layer_that_reads_its_weights_is_built_instead() {
    let model = Sequential::new().layer("normed", |p| {
        let weight = p.randn("weight", &[4, 3], 0.0, 1.0);
        // Depends on data: impossible without values.
        let scale = 1.0 / weight.norm().double_value(&[]);
        let constant = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]) * scale;
        let _ = p.zeros_no_train("steps", &[1]);
        nn::func(move |x| (x * &constant).matmul(&weight.tr()))
    });
    assert_eq!(model.parameter_count().unwrap(), 12);
    assert_eq!(model.parameter_bytes().unwrap(), [4 * (12 + 1)]);
}

#[test]
fn frozen_weights_are_parameters_too() {
    let model = Sequential::new().layer("frozen", |p| {
        let linear = nn::linear(p, 3, 2, nn::LinearConfig::default());
        let _ = linear.ws.set_requires_grad(false);
        linear
    });
    assert_eq!(model.parameter_count().unwrap(), 8);
}

#[test]
fn describing_a_model_leaves_the_callers_generator_and_tensors_alone() {
    let name = "describing_a_model_leaves_the_callers_generator_and_tensors_alone";
    apart(&format!("zoo::weightless::{name}"), generator_is_left_alone);
}

fn generator_is_left_alone() {
    gpipe::tch::manual_seed(11);
    let expected = Tensor::rand([3], (Kind::Float, Device::Cpu));
    gpipe::tch::manual_seed(11);
    let model = Sequential::new().layer("noisy", |p| {
        // Without a named device, the tensor is really created.
        let _ = Tensor::from_slice(&[1.0_f32; 8]).uniform_(0.0, 1.0);
        nn::linear(p, 3, 2, nn::LinearConfig::default())
    });
    model.variables().unwrap();
    assert!(Tensor::rand([3], (Kind::Float, Device::Cpu)).equal(&expected));
}

#[test]
fn a_layer_that_cannot_be_built_says_why() {
    let model = Sequential::new().try_layer("broken", |_| -> anyhow::Result<nn::Linear> {
        anyhow::bail!("no such size")
    });
    let error = model.parameter_count().unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "layer `broken` cannot be built: no such size"
    );
}
