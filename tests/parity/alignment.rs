//! The memory address of numbers changes no bit.

use gpipe::tch::{self, Kind, Tensor, nn};
use gpipe::{Sequential, Values, layers::Context, settings::Kernels};

use crate::operators::{Operator, operators};
use crate::support::batch;
use crate::support::everywhere::{Closure, same_everywhere};

/// Alignment of libtorch's own memory in bytes.
const LINE: usize = 64;

/// An operator's result and its operands' gradients. The operands, and the gradient of the result, begin
/// `shift` elements after the start of a line.
fn numbers(operator: &Operator, kind: Kind, shift: i64) -> Vec<Tensor> {
    let shapes = operator
        .shapes
        .iter()
        .zip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let operands: Vec<Tensor> = shapes
        .map(|(shape, number)| placed(&values(shape, number, kind), shift))
        .collect();
    let result = (operator.apply)(&operands);
    assert!(
        result.isfinite().all().int64_value(&[]) == 1,
        "{}: not finite",
        operator.name
    );
    // The backward of `cat` returns a slice of the gradient.
    let before = Tensor::zeros([shift], (kind, tch::Device::Cpu));
    let weights = values(&[result.numel() as i64], 0.5, kind);
    let weights = Tensor::cat(&[&before, &weights], 0);
    let joined = Tensor::cat(&[&before, &result.flatten(0, -1)], 0);
    (joined * weights).sum(kind).backward();
    let gradients = operands.iter().map(Tensor::grad);
    std::iter::once(result.detach()).chain(gradients).collect()
}

/// Numbers between -1 and 1 that are not multiples of each other.
fn values(shape: &[i64], phase: f64, kind: Kind) -> Tensor {
    let count = shape.iter().product::<i64>();
    let numbers = Tensor::arange(count, tch::kind::FLOAT_CPU) * 0.7 + phase;
    numbers.sin().reshape(shape).to_kind(kind)
}

/// A leaf with these values, `shift` elements into its memory.
fn placed(values: &Tensor, shift: i64) -> Tensor {
    let count = values.numel() as i64;
    let memory = Tensor::zeros([shift + count], (values.kind(), values.device()));
    let mut view = memory.narrow(0, shift, count).view_as(values);
    view.copy_(values);
    let size = values.kind().elt_size_in_bytes();
    assert_eq!(
        view.data_ptr() as usize % LINE,
        shift as usize * size % LINE
    );
    view.set_requires_grad(true)
}

/// Operators whose results differ for this type, with `threads` intra-op threads.
fn differing(kind: Kind, threads: i32) -> Vec<String> {
    let _ = tch::get_num_threads();
    tch::set_num_threads(threads);
    let mut found = Vec::new();
    let places = (LINE / kind.elt_size_in_bytes()) as i64;
    for operator in operators().iter().filter(|operator| operator.takes(kind)) {
        let aligned = numbers(operator, kind, 0);
        // More threads are slow, so only some places are tested.
        let step = if threads == 1 { 1 } else { 5 };
        let wrong: Vec<i64> = (1..places)
            .step_by(step)
            .filter(|&shift| {
                let own = numbers(operator, kind, shift);
                !own.iter()
                    .zip(&aligned)
                    .all(|(own, aligned)| own.equal(aligned))
            })
            .collect();
        if !wrong.is_empty() {
            found.push(format!(
                "{} {:?} {kind:?} {threads} thread(s): {wrong:?}",
                operator.name, operator.shapes
            ));
        }
    }
    found
}

/// Regression test: MKL chose its kernels by the operands' addresses, so on AMD processors a product of a
/// slice differed in the last bits from that of its copy.
#[test]
fn no_operator_looks_at_where_its_operands_begin() {
    let mut found = Vec::new();
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
        for threads in [1, 2] {
            found.extend(differing(kind, threads));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn nor_does_one_of_onednn() {
    let mut found = Vec::new();
    for threads in [1, 2] {
        let _kernels = Kernels::OneDnn { from: 0 }.scope().unwrap();
        found.extend(differing(Kind::Float, threads));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Five layers, each of which returns all rows but the first of a longer tensor: rows of 28 bytes, so that it
/// begins anywhere in a line.
fn slices() -> Sequential {
    Sequential::new().layers("rows", 5, |path, _| {
        let linear = nn::linear(path, 7, 7, nn::LinearConfig::default());
        Closure(move |inputs: Values, _: &Context| {
            let rows = inputs.into_one()?.apply(&linear).tanh();
            let longer = Tensor::cat(&[rows.narrow(0, 0, 1), rows.shallow_clone()], 0);
            Ok(longer.narrow(0, 1, rows.size()[0]).into())
        })
    })
}

/// Regression test: a copy made for a second run, or for another stage, was aligned, unlike the original
/// slice, so half of all cuts differed in the last bits.
#[test]
fn outputs_that_are_slices_have_the_same_bits_under_every_cut() {
    same_everywhere(&slices(), &batch(&[10, 7], 10).0, None);
}
