//! Autograd nodes with several outputs that take parameters, or values computed from them: some outputs are
//! used, some unused, some used twice.

use gpipe::tch::{Kind, Tensor};

use super::{Model, linear, weight};

/// Vectors of eight features through a sequence of such nodes.
pub(crate) fn multi_output() -> Model {
    let batch = |samples| super::super::batch(&[samples, 8], samples);
    let model = Model::new("multi-output", batch, super::super::cross_entropy);
    heads(factorizations(pieces(model)))
}

/// Parameters cut into pieces.
fn pieces(model: Model) -> Model {
    model
        .layer("split", |path| {
            let both = weight(path, "both", &[16, 8]);
            Box::new(move |x, _| {
                let halves = both.split(8, 0);
                x.matmul(&halves[0].tr()) + x.matmul(&halves[1].tr()).tanh()
            })
        })
        .layer("unbind", |path| {
            let rows = weight(path, "rows", &[3, 8]);
            Box::new(move |x, _| {
                let rows = rows.unbind(0);
                // The row in between is unused.
                x * (&rows[0] + 1.0) + &rows[2] * &rows[0]
            })
        })
        .layer("chunk", |path| {
            let wide = linear(path, 8, 24);
            Box::new(move |x, _| {
                let parts = x.apply(&wide).chunk(3, -1);
                &parts[0] * parts[2].sigmoid() + x
            })
        })
}

/// Factorized parameters, and statistics of values computed from them.
fn factorizations(model: Model) -> Model {
    model
        .layer("qr", |path| {
            let matrix = weight(path, "matrix", &[8, 8]);
            Box::new(move |x, _| x.matmul(&Tensor::linalg_qr(&matrix, "reduced").0))
        })
        .layer("svd", |path| {
            let matrix = weight(path, "matrix", &[8, 8]);
            Box::new(move |x, _| x * matrix.svd(true, true).1)
        })
        .layer("moments", |path| {
            let inner = linear(path, 8, 8);
            Box::new(move |x, _| {
                let y = x.apply(&inner);
                let (variance, mean) = y.var_mean_dim([-1_i64].as_slice(), false, true);
                let (of_weights, _) = inner.ws.var_mean(true);
                y * variance + mean + of_weights
            })
        })
        .layer("order", |path| {
            let inner = linear(path, 8, 8);
            Box::new(move |x, _| {
                let pairs = x.apply(&inner).view([-1, 4, 2]);
                let (most, place) = pairs.max_dim(2, false);
                let (sorted, _) = pairs.sort(1, true);
                let (top, _) = pairs.topk(2, 1, true, true);
                sorted.flatten(1, 2) + (most + place.to_kind(Kind::Float)).repeat([1, 2])
                    - top.flatten(1, 2).repeat([1, 2])
            })
        })
}

/// Library nodes that return more than the output.
fn heads(model: Model) -> Model {
    model
        .layer("norm", |path| {
            let (scale, shift) = (path.ones("scale", &[8]), path.zeros("shift", &[8]));
            Box::new(move |x, _| x.native_layer_norm([8], Some(&scale), Some(&shift), 1e-5).0)
        })
        .layer("cell", |path| {
            let (from_input, from_state) =
                (weight(path, "ih", &[32, 8]), weight(path, "hh", &[32, 8]));
            let (b, c) = (path.zeros("b", &[32]), path.zeros("c", &[32]));
            Box::new(move |x, _| {
                let zero = x.zeros_like();
                let step = |h: &Tensor, cell: &Tensor| {
                    x.lstm_cell(&[h, cell], &from_input, &from_state, Some(&b), Some(&c))
                };
                let (h, cell) = step(&zero, &zero);
                step(&h, &cell).0 + x
            })
        })
        .layer("attention", |path| {
            let qkv = linear(path, 8, 24);
            Box::new(move |x, _| {
                let parts = x.apply(&qkv).view([-1, 1, 4, 6]).split(2, -1);
                let none = None::<&Tensor>;
                let mixed = Tensor::scaled_dot_product_attention(
                    &parts[0], &parts[1], &parts[2], none, 0.0, true, None, false,
                );
                mixed.reshape([-1, 8]) + x
            })
        })
        .layer("head", |path| {
            let head = linear(path, 8, 5);
            Box::new(move |x, _| x.apply(&head))
        })
}
