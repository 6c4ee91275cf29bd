//! A CPU stage's backward traverses the graph itself; its gradients have the bits of libtorch's own engine,
//! which the plain model uses.

use crate::support::*;
use gpipe::Pipeline;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};

const MICRO_BATCHES: usize = 4;
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const INT64: (Kind, Device) = (Kind::Int64, Device::Cpu);

/// Compares a model's gradients over cuts and schedules with the plain model's.
fn as_the_engine(chain: &Chain) {
    single_threaded();
    let (x, y) = mlp_batch(8);
    for stages in 1..=chain.len() {
        for schedule in [
            ScheduleKind::GPipe,
            ScheduleKind::OneFOneB,
            ScheduleKind::ZbH1,
        ] {
            let mut pipe = Pipeline::builder(sequential(chain))
                .devices(&cpus(stages))
                .micro_batches(MICRO_BATCHES)
                .schedule(schedule)
                .threads_per_stage(1)
                .seed(9)
                .build()
                .unwrap();
            let plain = Plain::like(chain, &mut pipe);
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            plain.accumulate(&x, &y, &[2; MICRO_BATCHES]);
            let dense = |named: Vec<(String, Tensor)>| -> Vec<(String, Tensor)> {
                let one = |(name, grad): (String, Tensor)| {
                    let grad = if grad.is_sparse() {
                        grad.to_dense(None, false)
                    } else {
                        grad
                    };
                    (name, grad)
                };
                named.into_iter().map(one).collect()
            };
            let what = format!("p={stages} {schedule}");
            assert_same_bits(
                &dense(gradients(&mut pipe)),
                &dense(plain.gradients()),
                &what,
            );
        }
    }
}

fn input(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, 12, 16, nn::LinearConfig::default()))
}

fn head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
    Box::new(nn::linear(path, 16, 5, nn::LinearConfig::default()))
}

#[test]
fn nodes_with_several_outputs_of_which_some_are_not_used() {
    fn parts(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let wide = nn::linear(path, 16, 48, nn::LinearConfig::default());
        Box::new(nn::func(move |x| {
            let parts = x.apply(&wide).chunk(3, 1);
            let (largest, _) = parts[0].max_dim(1, true);
            &parts[0] * largest + &parts[2]
        }))
    }
    as_the_engine(&vec![("input", input), ("parts", parts), ("head", head)]);
}

#[test]
fn values_and_parameters_that_are_used_several_times() {
    fn reused(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let inner = nn::linear(path, 16, 16, nn::LinearConfig::default());
        Box::new(nn::func(move |x| {
            let once = x.apply(&inner).tanh();
            let twice = (&once + x).apply(&inner).sigmoid();
            &once * &once + &twice + x + (&twice * x).apply(&inner) + &once * 0.37
        }))
    }
    as_the_engine(&vec![("input", input), ("reused", reused), ("head", head)]);
}

#[test]
fn gradients_that_change_their_shape_and_type_on_the_way() {
    fn broadcast(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let (row, one) = (path.randn("row", &[1, 16], 0.5, 0.5), path.ones("one", &[]));
        Box::new(nn::func(move |x| {
            let double = (x * &row + &one).to_kind(Kind::Double);
            (double.sin() * &one)
                .to_kind(Kind::Float)
                .unsqueeze(0)
                .sum_dim_intlist([0_i64].as_slice(), false, Kind::Float)
                + x.to_kind(Kind::BFloat16).to_kind(Kind::Float)
        }))
    }
    as_the_engine(&vec![
        ("input", input),
        ("broadcast", broadcast),
        ("head", head),
    ]);
}

#[test]
fn sparse_gradients() {
    fn table(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let table = path.randn("table", &[7, 16], 0.0, 1.0);
        Box::new(nn::func(move |x| {
            let rows = (x.detach().abs() * 5.0).to_kind(Kind::Int64).remainder(7);
            x + Tensor::embedding(&table, &rows.select(1, 3), -1, false, true)
                + Tensor::embedding(&table, &rows.select(1, 5), -1, false, true)
        }))
    }
    as_the_engine(&vec![("input", input), ("table", table), ("head", head)]);
}

/// Small parameters are accumulated without an operation, in simple cases.
#[test]
fn parameters_of_all_sizes_layouts_and_types() {
    fn kinds(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let large = path.randn("large", &[640, 16], 0.0, 0.1);
        let turned = path.add("turned", Tensor::randn([16, 16], FLOAT).tr(), true);
        let spread = path.randn("spread", &[3, 5], 0.0, 1.0);
        let double = path.add(
            "double",
            Tensor::randn([16], (Kind::Double, Device::Cpu)),
            true,
        );
        let half = path.add(
            "half",
            Tensor::randn([16], (Kind::BFloat16, Device::Cpu)),
            true,
        );
        let (column, none) = (path.ones("column", &[16, 1]), path.ones("none", &[0, 16]));
        Box::new(nn::func(move |x| {
            let y = x
                .linear(&large, None::<Tensor>)
                .linear(&large.tr(), None::<Tensor>);
            // The gradient of a sum is one number, expanded; that of a copy is row-major, while the parameter
            // is column-major.
            let y = y * spread.sum(Kind::Float) + x.matmul(&turned.contiguous());
            let y = y + double.to_kind(Kind::Float) + half.to_kind(Kind::Float);
            y + x.matmul(&column) + column.tr() + none.sum(Kind::Float)
        }))
    }
    as_the_engine(&vec![("input", input), ("kinds", kinds), ("head", head)]);
}

/// libtorch's own formulas run without autograd tracking each of their operations.
#[test]
fn formulas_of_many_kinds() {
    fn formulas(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let filter = path.randn("filter", &[4, 1, 3], 0.0, 0.5);
        let square = path.randn("square", &[16, 16], 0.0, 0.3);
        let norm = nn::layer_norm(path / "norm", vec![16], nn::LayerNormConfig::default());
        let cell = nn::gru(path / "cell", 4, 4, nn::RNNConfig::default());
        Box::new(nn::func(move |x| {
            let rows = x.size()[0];
            let maps = x.unsqueeze(1).conv1d(&filter, None::<Tensor>, 1, 1, 1, 1);
            let maps = maps
                .max_pool1d(2, 2, 0, 1, false)
                .gelu("tanh")
                .reshape([rows, 2, 16]);
            let heads = maps.reshape([rows, 2, 4, 4]).transpose(1, 2);
            let none = None::<Tensor>;
            let mixed = Tensor::scaled_dot_product_attention(
                &heads, &heads, &heads, none, 0.0, true, None, false,
            );
            let (states, _) = nn::RNN::seq(&cell, &mixed.reshape([rows, 8, 4]));
            let seen = states
                .reshape([rows, 32])
                .narrow(1, 0, 16)
                .cumsum(1, Kind::Float);
            let symmetric = square.matmul(&square.tr()) + Tensor::eye(16, FLOAT);
            let solved = symmetric
                .linalg_cholesky(false)
                .inverse()
                .matmul(&seen.tr())
                .tr();
            let chosen = solved.index_select(1, &Tensor::arange(16, INT64).flip([0]));
            let parts = chosen.split(8, 1);
            let joined = Tensor::cat(
                &[
                    parts[1].logsumexp([1], true) * &parts[0],
                    parts[1].softmax(1, Kind::Float),
                ],
                1,
            );
            let written = joined.apply(&norm) * 1.0;
            let _ = written.narrow(1, 2, 3).g_mul_(&x.narrow(1, 2, 3));
            written
                .where_self(&x.gt(0.0), x)
                .prod_dim_int(0, true, Kind::Float)
                + written
        }))
    }
    as_the_engine(&vec![
        ("input", input),
        ("formulas", formulas),
        ("head", head),
    ]);
}

/// Neither the traversal nor dropping the graph may use stack per node.
#[test]
fn a_graph_of_ten_thousand_nodes() {
    fn deep(_: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::func(|x| {
            (0..10_000).fold(x.shallow_clone(), |x, _| x + 1e-6)
        }))
    }
    as_the_engine(&vec![("input", input), ("deep", deep), ("head", head)]);
}
