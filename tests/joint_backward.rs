//! The backward of a stage on the CPU walks through the graph by itself; its gradients
//! have the bits of libtorch's own engine, which the plain model runs.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod support;

use gpipe::Pipeline;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Kind, Tensor, nn};
use support::*;

const MICRO_BATCHES: usize = 4;

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

/// Neither the walk nor the end of the graph may need stack for each node.
#[test]
fn a_graph_of_ten_thousand_nodes() {
    fn deep(_: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::func(|x| {
            (0..10_000).fold(x.shallow_clone(), |x, _| x + 1e-6)
        }))
    }
    as_the_engine(&vec![("input", input), ("deep", deep), ("head", head)]);
}
