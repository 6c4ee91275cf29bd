use super::*;
use std::sync::Arc;
use tch::{Device, Kind};

const BASE: AdamW = AdamW {
    lr: 0.1,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.1,
};
const MOMENTUM: Sgd = Sgd {
    lr: 0.2,
    momentum: 0.9,
    dampening: 0.1,
    weight_decay: 0.01,
    nesterov: false,
};

type Named = Vec<(String, Tensor)>;

fn parameters(names: &[&str]) -> Named {
    let parameter = |(number, name): (usize, &&str)| {
        let values = Tensor::arange(5 + number as i64, (Kind::Float, Device::Cpu));
        ((*name).to_owned(), values.sin().set_requires_grad(true))
    };
    names.iter().enumerate().map(parameter).collect()
}

/// The gradient that a parameter of this name and size gets in this step.
fn give_gradients(parameters: &Named, step: usize) {
    for (name, parameter) in parameters {
        let phase = (name.len() * 10 + step) as f64;
        let grad = tch::no_grad(|| (parameter.detach() * phase).cos());
        ffi::set_grad(parameter, Some(&grad)).unwrap();
    }
}

fn step(state: &mut OptimizerState, groups: &Groups, parameters: &Named) -> Result<(), TorchError> {
    state.prepare(groups, parameters, &DeviceStreams::host())?;
    state.apply(groups, parameters, &DeviceStreams::host(), None)
}

fn train(groups: &Groups, parameters: &Named) -> OptimizerState {
    let mut state = OptimizerState::default();
    for number in 0..5 {
        give_gradients(parameters, number);
        step(&mut state, groups, parameters).unwrap();
    }
    state
}

fn subset(parameters: &Named, names: &[&str]) -> Named {
    let own = |(name, _): &&(String, Tensor)| names.contains(&name.as_str());
    let handle = |(name, tensor): &(String, Tensor)| (name.clone(), tensor.shallow_clone());
    parameters.iter().filter(own).map(handle).collect()
}

fn assert_same(left: &Named, right: &Named) {
    for ((name, left), (_, right)) in left.iter().zip(right) {
        assert!(left.equal(right), "{name}");
    }
}

#[test]
fn groups_update_as_an_optimizer_each_would() {
    let names = ["a", "b.bias", "cc", "d.bias", "e.slow", "ff"];
    let together = parameters(&names);
    let by_hand = parameters(&names);
    let bare = AdamW {
        weight_decay: 0.0,
        ..BASE
    };
    let mut groups = Groups::new(BASE.into());
    groups.push(Arc::new(|name| name.ends_with("bias")), bare.into());
    groups.push(Arc::new(|name| name.contains("slow")), MOMENTUM.into());
    train(&groups, &together);
    train(
        &Groups::new(BASE.into()),
        &subset(&by_hand, &["a", "cc", "ff"]),
    );
    train(
        &Groups::new(bare.into()),
        &subset(&by_hand, &["b.bias", "d.bias"]),
    );
    train(
        &Groups::new(MOMENTUM.into()),
        &subset(&by_hand, &["e.slow"]),
    );
    assert_same(&together, &by_hand);
    assert!(together.iter().all(|(_, p)| !p.grad().defined()));
}

#[test]
fn parameters_without_gradient_and_frozen_ones_are_left_alone() {
    for kind in [OptimizerKind::from(BASE), MOMENTUM.into()] {
        let groups = Groups::new(kind);
        let own = parameters(&["used", "unused", "frozen"]);
        let before = parameters(&["used", "unused", "frozen"]);
        let mut state = train(&groups, &subset(&own, &["used"]));
        give_gradients(&own, 5);
        ffi::set_grad(&own[1].1, None).unwrap();
        let _ = own[2].1.set_requires_grad(false);
        step(&mut state, &groups, &own).unwrap();
        assert!(!own[0].1.equal(&before[0].1));
        let left_alone = ["unused", "frozen"];
        assert_same(&subset(&own, &left_alone), &subset(&before, &left_alone));
        assert!(
            !own[2].1.grad().defined(),
            "a gradient from before it was frozen"
        );
    }
}

#[test]
fn another_kind_of_update_starts_anew_and_other_numbers_go_on() {
    let own = parameters(&["a"]);
    let mut state = train(&Groups::new(BASE.into()), &own);
    give_gradients(&own, 5);
    let before = own[0].1.copy();
    let grad = own[0].1.grad().copy();
    let plain = Sgd {
        weight_decay: 0.0,
        ..MOMENTUM
    };
    step(&mut state, &Groups::new(plain.into()), &own).unwrap();
    let expected = tch::no_grad(|| before - grad * 0.2);
    assert!(own[0].1.allclose(&expected, 1e-6, 1e-7, false));
    let slower = AdamW { lr: 0.01, ..BASE };
    give_gradients(&own, 6);
    step(&mut state, &Groups::new(slower.into()), &own).unwrap();
    give_gradients(&own, 7);
    step(&mut state, &Groups::new(BASE.into()), &own).unwrap();
    let Some(OptimizerSlot::AdamW { steps, .. }) = &state.slots[0] else {
        panic!("not AdamW's state");
    };
    assert_eq!(steps.double_value(&[]), 2.0);
}

#[test]
fn numbers_of_several_types_are_updated_side_by_side() {
    let mut own = parameters(&["a", "b", "c"]);
    own[1].1 = own[1]
        .1
        .detach()
        .to_kind(Kind::Double)
        .set_requires_grad(true);
    let alone = |place: usize| {
        let (name, tensor) = &own[place];
        vec![(name.clone(), tensor.detach().copy().set_requires_grad(true))]
    };
    let by_hand: Vec<Named> = (0..3).map(alone).collect();
    train(&Groups::new(BASE.into()), &own);
    for (place, by_hand) in by_hand.iter().enumerate() {
        train(&Groups::new(BASE.into()), by_hand);
        assert!(own[place].1.equal(&by_hand[0].1), "{place}");
    }
}

#[test]
fn a_sparse_gradient_is_refused_with_its_parameters_name() {
    let own = parameters(&["embed.weight"]);
    let grad = own[0].1.detach().to_sparse_sparse_dim(1);
    ffi::set_grad(&own[0].1, Some(&grad)).unwrap();
    let error =
        OptimizerState::default().prepare(&Groups::new(BASE.into()), &own, &DeviceStreams::host());
    let message = error.unwrap_err().to_string();
    assert!(message.contains("`embed.weight` is sparse"), "{message}");
}

#[test]
fn getting_ready_changes_nothing_and_a_first_update_stays_a_first_one() {
    let groups = Groups::new(MOMENTUM.into());
    let (own, other) = (parameters(&["a", "bb"]), parameters(&["a", "bb"]));
    let (mut state, mut straight) = (OptimizerState::default(), OptimizerState::default());
    give_gradients(&own, 0);
    state
        .prepare(&groups, &own, &DeviceStreams::host())
        .unwrap();
    state.abandon();
    assert_same(&own, &other);
    assert!(state.parts(0).is_empty(), "remembered without an update");
    assert!(own.iter().all(|(_, p)| p.grad().defined()));
    // Nothing was begun, so nothing is left to do.
    state
        .apply(&groups, &own, &DeviceStreams::host(), None)
        .unwrap();
    assert_same(&own, &other);
    assert!(own.iter().all(|(_, p)| p.grad().defined()));
    for at in 0..2 {
        give_gradients(&own, at);
        give_gradients(&other, at);
        step(&mut state, &groups, &own).unwrap();
        step(&mut straight, &groups, &other).unwrap();
    }
    assert_same(&own, &other);
}

#[test]
fn a_type_that_kernels_refuse_is_refused_before_any_update() {
    let mut own = parameters(&["a", "spectrum"]);
    own[1].1 = own[1]
        .1
        .detach()
        .to_kind(Kind::ComplexFloat)
        .set_requires_grad(true);
    for (_, parameter) in &own {
        ffi::set_grad(parameter, Some(&parameter.detach())).unwrap();
    }
    let error = step(
        &mut OptimizerState::default(),
        &Groups::new(BASE.into()),
        &own,
    );
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("`spectrum` is of type ComplexFloat"),
        "{message}"
    );
    assert!(own[0].1.grad().defined(), "still to be used");
}
