//! Results of a program, and the differences between two runs.

use gpipe::tch::{Kind, Tensor};

/// Gradients by parameter; `None` where there is none.
pub(crate) type Gradients = Vec<(String, Option<Tensor>)>;

/// All results that are compared bit for bit.
#[derive(Debug)]
pub(crate) struct Record {
    /// Outputs of inference before the first step and after the last, if they can be joined.
    pub(crate) before: Option<Vec<Option<Tensor>>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) after: Option<Vec<Option<Tensor>>>,
}

/// A difference between two runs.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) text: String,
    /// Whether a different order of summation can explain it.
    pub(crate) small: bool,
}

impl Difference {
    fn new(text: String) -> Self {
        Self { text, small: false }
    }
}

/// Results of one step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) loss: f64,
    pub(crate) gradients: Gradients,
    pub(crate) buffers: Vec<(String, Tensor)>,
    /// Gradients by input.
    pub(crate) input_gradients: Vec<Option<Tensor>>,
}

/// Differences between a run and the expected results.
pub(crate) fn differences(got: &Record, wanted: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    outputs(
        "before the steps",
        got.before.as_ref(),
        wanted.before.as_ref(),
        &mut found,
    );
    for (number, (got, wanted)) in got.steps.iter().zip(&wanted.steps).enumerate() {
        let (own, plain) = (got.loss, wanted.loss);
        if own.to_bits() != plain.to_bits() && !(own.is_nan() && plain.is_nan()) {
            found.push(Difference {
                text: format!("step {number}: the loss is {own}, not {plain}"),
                small: (own - plain).abs() < 1e-4 * (1.0 + plain.abs()),
            });
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
    outputs(
        "after the steps",
        got.after.as_ref(),
        wanted.after.as_ref(),
        &mut found,
    );
    found
}

fn outputs(
    when: &str,
    got: Option<&Vec<Option<Tensor>>>,
    wanted: Option<&Vec<Option<Tensor>>>,
    found: &mut Vec<Difference>,
) {
    let (Some(got), Some(wanted)) = (got, wanted) else {
        if got.is_some() != wanted.is_some() {
            let text = format!("{when}: outputs are joined: {}", got.is_some());
            found.push(Difference::new(text));
        }
        return;
    };
    for (number, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let what = format!("{when}: output {number}");
        found.extend(different(&what, got.as_ref(), wanted.as_ref()));
    }
}

/// Compares two tensors.
pub(crate) fn different(
    what: &str,
    got: Option<&Tensor>,
    wanted: Option<&Tensor>,
) -> Option<Difference> {
    let (got, wanted) = match (got, wanted) {
        (None, None) => return None,
        (Some(got), Some(wanted)) => (got.detach(), wanted.detach()),
        (got, _) => {
            let is = if got.is_some() {
                "is there"
            } else {
                "is absent"
            };
            return Some(Difference::new(format!("{what} {is}")));
        }
    };
    if got.size() != wanted.size() || got.kind() != wanted.kind() {
        let (is, not) = ((got.kind(), got.size()), (wanted.kind(), wanted.size()));
        return Some(Difference::new(format!("{what} is {is:?}, not {not:?}")));
    }
    // `equal` returns false for NaNs.
    if got.equal(&wanted) {
        return None;
    }
    let same = got.eq_tensor(&wanted);
    let nans = got.isnan().logical_and(&wanted.isnan());
    let left = same.logical_or(&nans).logical_not();
    if left.any().int64_value(&[]) == 0 {
        return None;
    }
    let double = |t: &Tensor| t.to_kind(Kind::Double);
    let apart = (double(&got) - double(&wanted))
        .abs()
        .max()
        .double_value(&[]);
    let most = double(&wanted).abs().max().double_value(&[]);
    let bound = if wanted.kind() == Kind::Double {
        1e-11
    } else {
        1e-4
    };
    Some(Difference {
        text: format!("{what} differs by {apart:e} where the largest is {most:e}"),
        small: wanted.is_floating_point() && apart <= bound * (most + 1e-2),
    })
}
