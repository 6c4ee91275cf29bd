//! Values cross a stage boundary unchanged: several tensors, absent ones, integers, views; and a layer may
//! change its inputs in place.

use crate::support::*;
use gpipe::ndarray::{Array2, ArrayD, array, s};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Layer, Pipeline, Sequential, Values, layers::Context, settings::on_values};

/// Maps one tensor to a transposed view, an absent value, integers, and a second branch.
#[derive(Debug)]
struct Fan {
    linear: nn::Linear,
}

impl Layer for Fan {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        let ids = x.argmax(1, false);
        let branch = x.apply(&self.linear).tanh();
        let view = branch
            .unsqueeze(1)
            .expand([-1, 3, -1], false)
            .transpose(1, 2);
        Ok([Some(view), None, Some(ids), Some(branch * 2.0)]
            .into_iter()
            .collect())
    }
}

/// Passes everything on after changing the branch in place.
#[derive(Debug)]
struct InPlace;

impl Layer for InPlace {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        anyhow::ensure!(inputs.len() == 4 && inputs.get(1).is_none());
        let mut values: Vec<Option<Tensor>> = inputs.into_iter().collect();
        values[3] = values[3].take().map(|mut branch| branch.sigmoid_());
        Ok(values.into_iter().collect())
    }
}

/// Joins to two outputs, one of them of half the width.
#[derive(Debug)]
struct Join {
    table: Tensor,
}

impl Layer for Join {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let (Some(view), Some(ids), Some(branch)) = (inputs.get(0), inputs.get(2), inputs.get(3))
        else {
            anyhow::bail!("a value is missing");
        };
        anyhow::ensure!(ids.kind() == Kind::Int64 && !view.is_contiguous());
        let looked_up = Tensor::embedding(&self.table, ids, -1, false, false);
        let sum = view.sum_dim_intlist(2_i64, false, None) * branch + looked_up;
        Ok(vec![sum.narrow(1, 0, 4), sum.narrow(1, 4, 4)].into())
    }
}

fn model() -> Sequential {
    Sequential::new()
        .layer("in", |p| nn::linear(p, 12, 8, nn::LinearConfig::default()))
        .layer("fan", |p| Fan {
            linear: nn::linear(p, 8, 8, nn::LinearConfig::default()),
        })
        .layer("in_place", |_| InPlace)
        .layer("join", |p| Join {
            table: p.randn("table", &[8, 8], 0.0, 1.0),
        })
}

/// Loss, gradients of all parameters, gradients of both input parts.
fn run(stages: usize) -> (u64, Vec<(String, Tensor)>, Tensor) {
    let mut pipe = Pipeline::builder(model())
        .devices(&cpus(stages))
        .micro_batches(3)
        .threads_per_stage(1)
        .build()
        .unwrap();
    let (x, y) = mlp_batch(10);
    let x = x.set_requires_grad(true);
    let targets = Values::from(vec![y, Tensor::ones([10, 4], (Kind::Float, Device::Cpu))]);
    let loss = on_values(|out: &Values, targets: &Values| {
        let (a, b) = (out.get(0).unwrap(), out.get(1).unwrap());
        let first = a.cross_entropy_for_logits(&targets.get(0).unwrap().remainder(4));
        first + b.mse_loss(targets.get(1).unwrap(), gpipe::tch::Reduction::Mean)
    });
    let mut report = pipe.train_step(&x, targets, loss).unwrap();
    let input = report.input_gradient.take().unwrap().into_one().unwrap();
    let outputs = pipe.forward_values(&x).unwrap();
    assert_eq!(
        (outputs.len(), outputs.get(1).unwrap().size()),
        (2, vec![10, 4])
    );
    (
        report.read().unwrap().loss.to_bits(),
        gradients(&mut pipe),
        input,
    )
}

#[test]
fn several_absent_integer_and_strided_values_cross_every_border() {
    let (loss, grads, input) = run(1);
    assert_eq!(grads.len(), 5, "every parameter has a gradient");
    for stages in 2..=4 {
        let (own_loss, own_grads, own_input) = run(stages);
        assert_eq!(own_loss, loss, "{stages} stages");
        assert_same_bits(&own_grads, &grads, &format!("{stages} stages"));
        assert!(
            own_input.equal(&input),
            "{stages} stages: gradient of the input"
        );
    }
}

/// For any layout: transposed, every second row backwards, broadcast, empty.
#[test]
fn arrays_are_the_tensors_of_their_numbers() {
    let x = Array2::from_shape_fn((4, 3), |(row, column)| (3 * row + column) as f32);
    let row = array![1.0_f32, 2.0];
    let views = [
        x.view().into_dyn(),
        x.t().into_dyn(),
        x.slice(s![..;-2, 1..]).into_dyn(),
        row.broadcast((2, 2)).unwrap().into_dyn(),
        x.slice(s![0..0, ..]).into_dyn(),
    ];
    for view in views {
        let values = Values::try_from(&view).unwrap();
        let sizes: Vec<i64> = view.shape().iter().map(|&side| side as i64).collect();
        assert_eq!(values.one().unwrap().size(), sizes);
        let back: ArrayD<f32> = (&values).try_into().unwrap();
        assert_eq!(back, view);
    }
}

#[test]
fn an_array_has_the_kind_of_the_values_or_there_is_none() {
    let values = Values::try_from(array![1_i64, 2]).unwrap();
    let error = ArrayD::<f32>::try_from(&values).unwrap_err().to_string();
    assert!(
        error.contains("a tensor of Int64 is no array of Float"),
        "{error}"
    );
    let none = ArrayD::<f32>::try_from(&Values::new())
        .unwrap_err()
        .to_string();
    assert!(none.contains("there are 0"), "{none}");
}

#[test]
fn a_step_with_arrays_is_the_step_with_tensors() {
    let step = |arrays: bool| {
        let model =
            Sequential::new().layer("head", |p| nn::linear(p, 3, 2, nn::LinearConfig::default()));
        let mut pipe = Pipeline::new(model, &[Device::Cpu], 2).unwrap();
        let x = Array2::from_shape_fn((4, 3), |(row, column)| (row as f32 - column as f32).sin());
        let y = array![0_i64, 1, 1, 0];
        let loss = |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y);
        let report = if arrays {
            pipe.train_step(x.t().to_owned().t(), &y, loss)
        } else {
            let (x, y) = (Tensor::try_from(&x).unwrap(), Tensor::try_from(&y).unwrap());
            pipe.train_step(&x, y, loss)
        };
        let out = pipe.forward_values(&x).unwrap();
        let out: ArrayD<f32> = (&out).try_into().unwrap();
        (report.unwrap().read().unwrap().loss.to_bits(), out)
    };
    assert_eq!(step(true), step(false));
}
