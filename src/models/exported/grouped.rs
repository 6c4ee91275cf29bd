//! The grouped matrix product of experts in `transformers`, which is defined in Python.

use tch::{Kind, Tensor};

/// Multiplies the rows of each expert by its matrix, like `transformers.integrations.moe` where
/// `torch.nn.functional.grouped_mm` cannot be exported: for all element types except `bfloat16`.
///
/// *Shapes*: `input: [rows, in]`, sorted by expert; `weight: [experts, in, out]`; `ends: [experts]`,
/// the end of each expert's rows. Rows after the last end give zeros.
///
/// # Errors
/// The ends are invalid, or libtorch fails.
pub(super) fn grouped_mm(input: &Tensor, weight: &Tensor, ends: &Tensor) -> anyhow::Result<Tensor> {
    let ends = Vec::<i64>::try_from(&ends.f_to_kind(Kind::Int64)?)?;
    let experts = weight.f_unbind(0)?;
    let ((rows, _), (_, _, outputs)) = (input.size2()?, weight.size3()?);
    let fits = ends.len() == experts.len() && ends.is_sorted();
    anyhow::ensure!(
        fits && ends.iter().all(|end| (0..=rows).contains(end)),
        "its experts end at rows {ends:?} of {rows}, and there are {} of them",
        experts.len()
    );
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([rows]);
    let counts: Vec<i64> = starts.zip(ends).map(|(start, end)| end - start).collect();
    let of_experts = input.f_split_with_sizes(&counts, 0)?;
    let mut made = Vec::new();
    for (rows, expert) in of_experts.iter().zip(&experts) {
        if rows.size()[0] > 0 {
            made.push(rows.f_mm(expert)?);
        }
    }
    if let Some(none) = counts.last().filter(|none| **none > 0 || made.is_empty()) {
        let kind = made.first().map_or(input.kind(), Tensor::kind);
        made.push(Tensor::f_zeros([*none, outputs], (kind, input.device()))?);
    }
    Ok(Tensor::f_cat(&made, 0)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn each_row_is_multiplied_by_the_matrix_of_its_expert() {
        tch::manual_seed(3);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
        let (input, weight) = (random(&[6, 3]), random(&[4, 3, 2]));
        let [input, weight] = [input, weight].map(|own| own.set_requires_grad(true));
        // No rows of the second expert, and a row of no expert.
        let ends = Tensor::from_slice(&[2_i32, 2, 4, 5]);
        let own = grouped_mm(&input, &weight, &ends).unwrap();
        let expert = [Some(0), Some(0), Some(2), Some(2), Some(3), None];
        for (row, expert) in expert.into_iter().enumerate() {
            let wanted = match expert {
                Some(expert) => input.get(row as i64).unsqueeze(0).mm(&weight.get(expert)),
                None => Tensor::zeros([1, 2], (Kind::Double, Device::Cpu)),
            };
            assert!(
                own.get(row as i64)
                    .unsqueeze(0)
                    .allclose(&wanted, 1e-12, 1e-12, false)
            );
        }
        own.sum(Kind::Double).backward();
        let none = |own: Tensor| own.count_nonzero(None).int64_value(&[]) == 0;
        assert!(none(input.grad().get(5)) && none(weight.grad().get(1)));
        assert!(!none(input.grad().get(4)) && !none(weight.grad().get(3)));
    }

    #[test]
    fn ends_that_do_not_fit_are_refused() {
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        for ends in [&[1_i64, 7][..], &[3, 2], &[2], &[-1, 4]] {
            let ends = Tensor::from_slice(ends);
            let error = grouped_mm(&zeros(&[4, 3]), &zeros(&[2, 3, 2]), &ends).unwrap_err();
            assert!(error.to_string().contains("end at rows"), "{error}");
        }
    }
}
