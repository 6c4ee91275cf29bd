//! What a program gave, and in what two runs of it differ.

use gpipe::tch::Tensor;

/// By parameter; `None` where there is no gradient.
pub(crate) type Gradients = Vec<(String, Option<Tensor>)>;

/// Everything that is compared to the bit.
#[derive(Debug)]
pub(crate) struct Record {
    /// The outputs in inference before the first step and after the last, where they can
    /// be joined.
    pub(crate) before: Option<Vec<Option<Tensor>>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) after: Option<Vec<Option<Tensor>>>,
}

/// What one step gave.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) loss: f64,
    pub(crate) gradients: Gradients,
    pub(crate) buffers: Vec<(String, Tensor)>,
    /// By input.
    pub(crate) input_gradients: Vec<Option<Tensor>>,
}

/// In what a run differs from what it has to give.
pub(crate) fn differences(got: &Record, wanted: &Record) -> Vec<String> {
    let mut found = Vec::new();
    outputs("before the steps", &got.before, &wanted.before, &mut found);
    for (number, (got, wanted)) in got.steps.iter().zip(&wanted.steps).enumerate() {
        if got.loss.to_bits() != wanted.loss.to_bits()
            && !(got.loss.is_nan() && wanted.loss.is_nan())
        {
            let (got, wanted) = (got.loss, wanted.loss);
            found.push(format!("step {number}: the loss is {got}, not {wanted}"));
        }
        for ((name, wanted), (_, got)) in wanted.gradients.iter().zip(&got.gradients) {
            let what = format!("step {number}: the gradient of {name}");
            found.extend(different(&what, got.as_ref(), wanted.as_ref()));
        }
        for ((name, wanted), (_, got)) in wanted.buffers.iter().zip(&got.buffers) {
            let what = format!("step {number}: the buffer {name}");
            found.extend(different(&what, Some(got), Some(wanted)));
        }
        let pairs = got.input_gradients.iter().zip(&wanted.input_gradients);
        for (input, (got, wanted)) in pairs.enumerate() {
            let what = format!("step {number}: the gradient of input {input}");
            found.extend(different(&what, got.as_ref(), wanted.as_ref()));
        }
    }
    outputs("after the steps", &got.after, &wanted.after, &mut found);
    found
}

fn outputs(
    when: &str,
    got: &Option<Vec<Option<Tensor>>>,
    wanted: &Option<Vec<Option<Tensor>>>,
    found: &mut Vec<String>,
) {
    let (Some(got), Some(wanted)) = (got, wanted) else {
        if got.is_some() != wanted.is_some() {
            found.push(format!("{when}: outputs are joined: {}", got.is_some()));
        }
        return;
    };
    for (number, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let what = format!("{when}: output {number}");
        found.extend(different(&what, got.as_ref(), wanted.as_ref()));
    }
}

/// In what two tensors differ.
pub(crate) fn different(
    what: &str,
    got: Option<&Tensor>,
    wanted: Option<&Tensor>,
) -> Option<String> {
    let (got, wanted) = match (got, wanted) {
        (None, None) => return None,
        (Some(got), Some(wanted)) => (got.detach(), wanted.detach()),
        (got, _) => {
            let is = if got.is_some() {
                "is there"
            } else {
                "is absent"
            };
            return Some(format!("{what} {is}"));
        }
    };
    if got.size() != wanted.size() || got.kind() != wanted.kind() {
        return Some(format!(
            "{what} is {:?}{:?}, not {:?}{:?}",
            got.kind(),
            got.size(),
            wanted.kind(),
            wanted.size()
        ));
    }
    // `equal` says no where there are NaNs.
    if got.equal(&wanted) {
        return None;
    }
    let same = got.eq_tensor(&wanted);
    let nans = got.isnan().logical_and(&wanted.isnan());
    let left = same.logical_or(&nans).logical_not();
    if left.any().int64_value(&[]) == 0 {
        return None;
    }
    let kind = gpipe::tch::Kind::Double;
    let apart = (got.to_kind(kind) - wanted.to_kind(kind)).abs().max();
    let most = wanted.to_kind(kind).abs().max();
    Some(format!(
        "{what} differs by {:e} where the largest is {:e}",
        apart.double_value(&[]),
        most.double_value(&[])
    ))
}
