//! Operators by library: MKL, oneDNN, libtorch's own kernels.

use gpipe::tch::{Kind, Reduction, Tensor};

/// An operator, and the shapes of its operands.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    pub(crate) shapes: Vec<Vec<i64>>,
    pub(crate) apply: fn(&[Tensor]) -> Tensor,
    /// Whether it supports `BFloat16`, unlike LAPACK and Fourier transforms.
    short: bool,
}

impl Operator {
    pub(crate) fn takes(&self, kind: Kind) -> bool {
        self.short || kind != Kind::BFloat16
    }
}

type Apply = fn(&[Tensor]) -> Tensor;

pub(crate) fn operators() -> Vec<Operator> {
    let mut all = Vec::new();
    for part in [
        products(),
        convolutions(),
        recurrent(),
        norms(),
        reductions(),
        elementwise(),
        losses(),
    ] {
        all.extend(part.into_iter().map(|entry| operator(entry, true)));
    }
    all.extend(algebra().into_iter().map(|entry| operator(entry, false)));
    all
}

type Entry = (&'static str, &'static [&'static [i64]], Apply);

fn operator((name, shapes, apply): Entry, short: bool) -> Operator {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Operator {
        name,
        shapes,
        apply,
        short,
    }
}

fn products() -> Vec<Entry> {
    let linear: Apply = |t| t[0].linear(&t[1], Some(&t[2]));
    let attention: Apply = |t| {
        let mask: Option<&Tensor> = None;
        Tensor::scaled_dot_product_attention(&t[0], &t[1], &t[2], mask, 0.0, false, None, false)
    };
    let causal: Apply = |t| {
        let mask: Option<&Tensor> = None;
        Tensor::scaled_dot_product_attention(&t[0], &t[1], &t[2], mask, 0.0, true, None, false)
    };
    vec![
        ("linear", &[&[6, 17], &[33, 17], &[33]], linear),
        ("linear", &[&[7, 8], &[8, 8], &[8]], linear),
        ("linear", &[&[1, 8], &[5, 8], &[5]], linear),
        ("linear", &[&[32, 32], &[32, 32], &[32]], linear),
        ("linear", &[&[64, 129], &[130, 129], &[130]], linear),
        ("linear", &[&[3, 5, 8], &[24, 8], &[24]], linear),
        ("linear without a bias", &[&[6, 17], &[33, 17]], |t| {
            t[0].matmul(&t[1].tr())
        }),
        ("mm", &[&[6, 17], &[17, 33]], |t| t[0].mm(&t[1])),
        ("mm", &[&[6, 6], &[6, 6]], |t| t[0].mm(&t[1])),
        ("mm", &[&[64, 200], &[200, 72]], |t| t[0].mm(&t[1])),
        ("addmm", &[&[33], &[6, 17], &[17, 33]], |t| {
            t[0].addmm(&t[1], &t[2])
        }),
        ("bmm", &[&[4, 7, 9], &[4, 9, 11]], |t| t[0].bmm(&t[1])),
        ("bmm", &[&[3, 32, 40], &[3, 40, 32]], |t| t[0].bmm(&t[1])),
        ("baddbmm", &[&[4, 7, 11], &[4, 7, 9], &[4, 9, 11]], |t| {
            t[0].baddbmm(&t[1], &t[2], 0.5, 2.0)
        }),
        ("matmul", &[&[3, 5, 8], &[8, 7]], |t| t[0].matmul(&t[1])),
        ("mv", &[&[19, 23], &[23]], |t| t[0].mv(&t[1])),
        ("dot", &[&[203], &[203]], |t| t[0].dot(&t[1])),
        (
            "attention",
            &[&[2, 2, 5, 8], &[2, 2, 5, 8], &[2, 2, 5, 8]],
            attention,
        ),
        (
            "attention",
            &[&[1, 3, 40, 24], &[1, 3, 40, 24], &[1, 3, 40, 24]],
            attention,
        ),
        (
            "causal attention",
            &[&[2, 2, 9, 16], &[2, 2, 9, 16], &[2, 2, 9, 16]],
            causal,
        ),
    ]
}

fn convolutions() -> Vec<Entry> {
    vec![
        ("conv1d", &[&[3, 4, 19], &[5, 4, 3], &[5]], |t| {
            t[0].conv1d(&t[1], Some(&t[2]), 1, 1, 1, 1)
        }),
        ("conv2d 1x1", &[&[3, 8, 6, 6], &[12, 8, 1, 1], &[12]], |t| {
            t[0].conv2d(&t[1], Some(&t[2]), 1, 0, 1, 1)
        }),
        ("conv2d 3x3", &[&[3, 4, 9, 7], &[6, 4, 3, 3], &[6]], |t| {
            t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 1)
        }),
        (
            "conv2d 3x3",
            &[&[2, 16, 12, 12], &[32, 16, 3, 3], &[32]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 2, 1, 1, 1),
        ),
        (
            "conv2d, one sample",
            &[&[1, 3, 9, 9], &[4, 3, 3, 3], &[4]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 1),
        ),
        (
            "depthwise conv2d",
            &[&[3, 6, 9, 7], &[6, 1, 3, 3], &[6]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 1, 1, 1, 6),
        ),
        (
            "dilated conv2d",
            &[&[3, 4, 9, 7], &[6, 4, 3, 3], &[6]],
            |t| t[0].conv2d(&t[1], Some(&t[2]), 1, 2, 2, 1),
        ),
        (
            "transposed conv2d",
            &[&[3, 4, 5, 6], &[4, 6, 3, 3], &[6]],
            |t| t[0].conv_transpose2d(&t[1], Some(&t[2]), 2, 1, 0, 1, 1),
        ),
        ("conv3d", &[&[2, 3, 5, 6, 5], &[4, 3, 3, 3, 3], &[4]], |t| {
            t[0].conv3d(&t[1], Some(&t[2]), 1, 1, 1, 1)
        }),
        ("average pooling", &[&[3, 4, 9, 7]], |t| {
            t[0].avg_pool2d(3, 2, 1, false, true, None)
        }),
        ("largest of a window", &[&[3, 4, 9, 7]], |t| {
            t[0].max_pool2d(3, 2, 1, 1, false)
        }),
        ("resizing", &[&[3, 4, 5, 6]], |t| {
            t[0].upsample_bilinear2d([9, 11], false, None, None)
        }),
    ]
}

fn recurrent() -> Vec<Entry> {
    vec![
        (
            "lstm",
            &[
                &[4, 3, 8],
                &[1, 3, 8],
                &[1, 3, 8],
                &[32, 8],
                &[32, 8],
                &[32],
                &[32],
            ],
            |t| {
                t[0].lstm(&t[1..3], &t[3..], true, 1, 0.0, true, false, false)
                    .0
            },
        ),
        (
            "gru",
            &[&[4, 3, 7], &[1, 3, 5], &[15, 7], &[15, 5], &[15], &[15]],
            |t| t[0].gru(&t[1], &t[2..], true, 1, 0.0, true, false, false).0,
        ),
        (
            "rnn",
            &[&[4, 3, 7], &[1, 3, 5], &[5, 7], &[5, 5], &[5], &[5]],
            |t| {
                t[0].rnn_tanh(&t[1], &t[2..], true, 1, 0.0, true, false, false)
                    .0
            },
        ),
    ]
}

fn norms() -> Vec<Entry> {
    vec![
        ("layer norm", &[&[7, 19], &[19], &[19]], |t| {
            t[0].layer_norm([19], Some(&t[1]), Some(&t[2]), 1e-5, true)
        }),
        ("layer norm", &[&[5, 64], &[64], &[64]], |t| {
            t[0].layer_norm([64], Some(&t[1]), Some(&t[2]), 1e-5, true)
        }),
        ("group norm", &[&[3, 6, 5, 5], &[6], &[6]], |t| {
            t[0].group_norm(2, Some(&t[1]), Some(&t[2]), 1e-5, true)
        }),
        ("batch norm", &[&[7, 6, 5, 5], &[6], &[6]], |t| {
            let none: Option<&Tensor> = None;
            t[0].batch_norm(Some(&t[1]), Some(&t[2]), none, none, true, 0.1, 1e-5, true)
        }),
        ("batch norm of vectors", &[&[19, 13], &[13], &[13]], |t| {
            let none: Option<&Tensor> = None;
            t[0].batch_norm(Some(&t[1]), Some(&t[2]), none, none, true, 0.1, 1e-5, true)
        }),
        ("softmax", &[&[7, 19]], |t| t[0].softmax(-1, None)),
        ("softmax over the first", &[&[19, 7, 3]], |t| {
            t[0].softmax(0, None)
        }),
        ("log softmax", &[&[7, 67]], |t| t[0].log_softmax(-1, None)),
    ]
}

fn reductions() -> Vec<Entry> {
    vec![
        ("sum", &[&[203]], |t| t[0].sum(None)),
        ("sum", &[&[33_333]], |t| t[0].sum(None)),
        ("sum of rows", &[&[7, 61]], |t| {
            t[0].sum_dim_intlist(-1, false, None)
        }),
        ("sum of columns", &[&[61, 7]], |t| {
            t[0].sum_dim_intlist(0, false, None)
        }),
        ("sum of columns", &[&[61, 83]], |t| {
            t[0].sum_dim_intlist(0, false, None)
        }),
        ("sum over the outer two", &[&[5, 7, 13, 3]], |t| {
            t[0].sum_dim_intlist([0, 2].as_slice(), false, None)
        }),
        ("mean", &[&[203]], |t| t[0].mean(None)),
        ("mean of rows", &[&[7, 61]], |t| {
            t[0].mean_dim(-1, false, None)
        }),
        ("variance", &[&[7, 61]], |t| t[0].var_dim(1, true, false)),
        ("norm", &[&[203]], |t| t[0].norm()),
        ("norm of rows", &[&[7, 61]], |t| {
            t[0].norm_scalaropt_dim(2, -1, false)
        }),
        ("product", &[&[7, 11]], |t| {
            (&t[0] + 1.5).prod_dim_int(1, false, None)
        }),
        ("largest", &[&[7, 61]], |t| t[0].amax(1, false)),
        ("logsumexp", &[&[7, 61]], |t| t[0].logsumexp(1, false)),
        ("cumsum", &[&[7, 61]], |t| t[0].cumsum(1, None)),
        ("embedding", &[&[11, 13]], |t| {
            Tensor::embedding(
                &t[0],
                &Tensor::from_slice(&[3_i64, 1, 3, 10, 0, 3]),
                -1,
                false,
                false,
            )
        }),
        ("rows", &[&[11, 13]], |t| {
            t[0].index_select(0, &Tensor::from_slice(&[3_i64, 1, 3, 10]))
        }),
        ("cat", &[&[3, 7], &[5, 7]], |t| Tensor::cat(t, 0)),
    ]
}

fn elementwise() -> Vec<Entry> {
    const SHAPE: &[&[i64]] = &[&[7, 29]];
    const PAIR: &[&[i64]] = &[&[7, 29], &[7, 29]];
    vec![
        ("add", PAIR, |t| &t[0] + &t[1]),
        ("add to each row", &[&[7, 29], &[29]], |t| &t[0] + &t[1]),
        ("multiply", PAIR, |t| &t[0] * &t[1]),
        ("multiply", &[&[200, 333], &[333]], |t| &t[0] * &t[1]),
        ("divide", PAIR, |t| &t[0] / (&t[1] + 2.0)),
        ("power", PAIR, |t| (&t[0] + 2.0).pow(&t[1])),
        ("atan2", PAIR, |t| t[0].atan2(&t[1])),
        ("relu", SHAPE, |t| t[0].relu()),
        ("exp", SHAPE, |t| t[0].exp()),
        ("log", SHAPE, |t| (&t[0] + 2.0).log()),
        ("sqrt", SHAPE, |t| (&t[0] + 2.0).sqrt()),
        ("reciprocal root", SHAPE, |t| (&t[0] + 2.0).rsqrt()),
        ("sin", SHAPE, |t| t[0].sin()),
        ("cos", SHAPE, |t| t[0].cos()),
        ("tanh", SHAPE, |t| t[0].tanh()),
        ("sigmoid", SHAPE, |t| t[0].sigmoid()),
        ("erf", SHAPE, |t| t[0].erf()),
        ("lgamma", SHAPE, |t| (&t[0] + 2.0).lgamma()),
        ("gelu", SHAPE, |t| t[0].gelu("none")),
        ("gelu by tanh", SHAPE, |t| t[0].gelu("tanh")),
        ("silu", SHAPE, |t| t[0].silu()),
        ("softplus", SHAPE, |t| t[0].softplus()),
        ("mish", SHAPE, |t| t[0].mish()),
        ("elu", SHAPE, |t| t[0].elu()),
    ]
}

fn losses() -> Vec<Entry> {
    vec![
        ("mean square", &[&[7, 29], &[7, 29]], |t| {
            t[0].mse_loss(&t[1], Reduction::Mean)
        }),
        ("absolute error", &[&[7, 29], &[7, 29]], |t| {
            t[0].l1_loss(&t[1], Reduction::Mean)
        }),
        ("cross entropy", &[&[5, 29]], |t| {
            t[0].cross_entropy_for_logits(&Tensor::from_slice(&[3_i64, 1, 28, 0, 7]))
        }),
        ("binary cross entropy", &[&[7, 29]], |t| {
            let none: Option<&Tensor> = None;
            t[0].binary_cross_entropy_with_logits(&t[0].detach().abs(), none, none, Reduction::Mean)
        }),
    ]
}

/// A matrix with an inverse.
fn regular(t: &Tensor) -> Tensor {
    t.mm(&t.tr()) + Tensor::eye(t.size()[0], (t.kind(), t.device())) * 3.0
}

fn algebra() -> Vec<Entry> {
    vec![
        ("cholesky", &[&[9, 9]], |t| {
            regular(&t[0]).linalg_cholesky(false)
        }),
        ("solve", &[&[9, 9], &[9, 4]], |t| {
            Tensor::linalg_solve(&regular(&t[0]), &t[1], true)
        }),
        ("inverse", &[&[9, 9]], |t| {
            Tensor::linalg_inv(&regular(&t[0]))
        }),
        ("qr", &[&[9, 9]], |t| {
            Tensor::linalg_qr(&regular(&t[0]), "reduced").1
        }),
        ("fourier transform", &[&[5, 24]], |t| {
            t[0].fft_rfft(None, -1, "backward")
                .fft_irfft(24, -1, "forward")
        }),
        ("fourier transform", &[&[3, 31]], |t| {
            t[0].fft_rfft(None, -1, "backward")
                .fft_irfft(31, -1, "forward")
        }),
    ]
}
