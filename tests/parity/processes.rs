//! The same numbers if the stages are in several processes, each with its own devices.
//!
//! The processes are threads here, each with its own world, connected by gloo; tests/world has real ones. Of
//! the covering combinations, each model runs every eighth, rotating over the models; `PARITY_EVERY=1` runs
//! all (some four minutes).

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gpipe::Pipeline;
use gpipe::tch::Tensor;
use gpipe::world::{Launcher, Words, World};

use crate::case::{Case, KERNELS, cases, covering, with_kernels};
use crate::support::models::{self, Model};
use crate::support::reference::{Named, Numbers, pipeline_numbers};
use crate::support::{cpus, single_threaded, snapshot};
use crate::{ONEDNN, SAMPLES, all_same, same};

const MICRO_BATCHES: [usize; 6] = [1, 2, 3, 4, 7, 8];
const UPDATES: usize = 3;

/// Runs `body` as each of `size` ranks; returns the reports of each, in order. Fails instead of hanging if no
/// rank reports anything for five minutes.
pub(crate) fn ranks<T: Send + 'static>(
    size: usize,
    body: impl Fn(&Arc<World>, &mut dyn FnMut(T)) + Clone + Send + 'static,
) -> Vec<Vec<T>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let (done, results) = mpsc::channel();
    let kernels = KERNELS.get();
    for rank in 0..size {
        let (body, done) = (body.clone(), done.clone());
        thread::spawn(move || {
            KERNELS.set(kernels);
            single_threaded();
            let world = World::join(Words {
                rank,
                size,
                local_rank: rank,
                local_size: None,
                master: Some(("127.0.0.1".to_owned(), port)),
                launcher_serves: false,
                run: "parity".to_owned(),
                restarts: 0,
                launcher: Launcher::Variables,
            });
            let world = Arc::new(world.unwrap());
            body(&world, &mut |result| {
                done.send((rank, Some(result))).unwrap()
            });
            Arc::into_inner(world).unwrap().leave().unwrap();
            done.send((rank, None)).unwrap();
        });
    }
    drop(done);
    let mut all: Vec<Vec<T>> = (0..size).map(|_| Vec::new()).collect();
    let mut ended = 0;
    while ended < size {
        match results.recv_timeout(Duration::from_mins(5)).unwrap() {
            (rank, Some(result)) => all[rank].push(result),
            (_, None) => ended += 1,
        }
    }
    all
}

/// The pipeline of a case, whose devices are divided among the processes.
fn pipeline(case: &Case, model: &Model, world: &Arc<World>) -> Result<Pipeline, gpipe::Error> {
    let (rank, size) = (world.rank(), world.size());
    let own = (case.devices + rank) / size;
    case.builder(model).devices(&cpus(own)).world(world).build()
}

fn by_name(lists: impl Iterator<Item = Named>) -> Named {
    let mut all: Named = lists.flatten().collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// Difference between the ranks' numbers and the expected ones.
fn difference(all: &[Numbers], expected: &Numbers) -> Result<(), String> {
    let copied = |list: &Named| {
        list.iter()
            .map(|(n, t)| (n.clone(), t.shallow_clone()))
            .collect()
    };
    for (rank, own) in all.iter().enumerate() {
        let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        if bits(&own.losses) != bits(&expected.losses) {
            return Err(format!(
                "losses {:?} in rank {rank}, not {:?}",
                own.losses, expected.losses
            ));
        }
        same(&own.output, &expected.output)
            .map_err(|why| format!("output in rank {rank} {why}"))?;
    }
    let gradients = by_name(all.iter().map(|own| copied(&own.gradients)));
    all_same(
        &gradients,
        &by_name(std::iter::once(copied(&expected.gradients))),
    )
    .map_err(|why| format!("gradient of {why}"))?;
    let after = by_name(all.iter().map(|own| copied(&own.after)));
    all_same(&after, &by_name(std::iter::once(copied(&expected.after))))
        .map_err(|why| format!("after updates {why}"))?;
    let inputs: Vec<&Tensor> = all
        .iter()
        .filter_map(|own| own.input_gradient.as_ref())
        .collect();
    match (&inputs[..], &expected.input_gradient) {
        ([], None) => Ok(()),
        ([own], Some(plain)) => {
            same(own, plain).map_err(|why| format!("gradient of the input {why}"))
        }
        (several, _) => Err(format!("{} gradients of the input", several.len())),
    }
}

/// Runs a covering set of cases with as many processes as devices, and for two processes with twice as many
/// devices.
fn suite(number: usize, make: fn() -> Model) {
    single_threaded();
    let model = make();
    let layers = model.parts.len();
    let only = std::env::var("PARITY").unwrap_or_default();
    let every = !only.is_empty() || std::env::var_os("PARITY_EVERY").is_some();
    let (first, stride) = if every { (0, 1) } else { (number % 8, 8) };
    let all = MICRO_BATCHES.iter().flat_map(|&m| cases(layers, m));
    let chosen = covering(all.filter(|case| case.devices > 1));
    let chosen = |size: usize| {
        let fits = move |case: &Case| case.devices == size || (size == 2 && case.devices == 4);
        let exists = |case: &Case| {
            case.exists() && chosen.contains(&case.to_string()) && case.to_string().contains(&only)
        };
        let all = MICRO_BATCHES.iter().flat_map(move |&m| cases(layers, m));
        let all = all.filter(fits).filter(exists).skip(first).step_by(stride);
        all.collect::<Vec<Case>>()
    };
    let (x, y) = (model.batch)(SAMPLES);
    let (mut failures, mut count) = (Vec::new(), 0);
    let began = Instant::now();
    for size in 2..=4 {
        let cases = Arc::new(chosen(size));
        let own = Arc::clone(&cases);
        let run = move |world: &Arc<World>, tell: &mut dyn FnMut(_)| {
            let model = make();
            let (x, y) = (model.batch)(SAMPLES);
            let one = |case: &Case| {
                let mut pipe = pipeline(case, &model, world)?;
                pipeline_numbers(&mut pipe, &model, (&x, &y), UPDATES)
            };
            for case in own.iter() {
                tell(one(case).map_err(|error: gpipe::Error| error.to_string()));
            }
        };
        let mut results: Vec<_> = ranks(size, run).into_iter().map(Vec::into_iter).collect();
        let mut expected = BTreeMap::new();
        count += cases.len();
        for case in cases.iter() {
            let expected = expected.entry(case.micro_batches).or_insert_with(|| {
                let mut one = Case::simplest(case.micro_batches).pipeline(&model).unwrap();
                let _ = snapshot(&mut one);
                pipeline_numbers(&mut one, &model, (&x, &y), UPDATES).unwrap()
            });
            let own: Result<Vec<Numbers>, String> =
                results.iter_mut().map(|own| own.next().unwrap()).collect();
            if let Err(why) = own.and_then(|own| difference(&own, expected)) {
                failures.push(format!(
                    "{}: {case} over {size} processes: {why}",
                    model.name
                ));
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{}: {count} combinations; {seconds:.1} s", model.name);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn mlp() {
    suite(0, models::mlp);
}

#[test]
fn convolutions_with_batch_norm() {
    suite(1, models::convnet);
}

#[test]
fn convolutions_with_batch_norm_by_onednn() {
    with_kernels(ONEDNN, || suite(2, models::convnet));
}

#[test]
fn transformer_with_dropout() {
    suite(2, || models::transformer(0.1));
}

#[test]
fn transformer_with_dropout_by_onednn() {
    with_kernels(ONEDNN, || suite(3, || models::transformer(0.1)));
}

#[test]
fn unet_with_three_long_skips() {
    suite(3, models::unet);
}

#[test]
fn weights_used_more_than_once() {
    suite(4, models::recurrent);
}

#[test]
fn nodes_with_several_outputs() {
    suite(5, models::multi_output);
}

#[test]
fn buffers_that_a_forward_reads_and_moves() {
    suite(6, models::moving);
}

#[test]
fn tied_embedding_and_head() {
    suite(7, models::tied);
}
