//! A loader and a training that are as slow as they are told to be.

use std::ops::ControlFlow;
use std::time::Duration;

use gpipe::data::{
    Batches, DataError, Dataset, Each, InputMeasures, OnDevice, Phase, Place, Source,
};
use gpipe::error::TorchError;
use gpipe::tch::{Device, Kind, Tensor};
use rustix::time::{ClockId, clock_gettime};

use super::bottlenecks::Bottleneck;

/// Items of a batch.
const SIZE: usize = 8;
/// Rows and columns of what a step multiplies.
const SIDE: i64 = 256;
/// Batches of an epoch that comes again.
const EPOCH: usize = 16;

/// Keeps its thread busy or asleep.
fn spend(work: f64, idle: f64) {
    if idle > 0.0 {
        std::thread::sleep(Duration::from_secs_f64(idle / 1e3));
    }
    let begin = cpu();
    while cpu() - begin < work / 1e3 {
        std::hint::black_box((0..2000_u32).fold(0, u32::wrapping_add));
    }
}

/// Seconds that the thread has been on a core.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A batch whose copy takes what it is told to.
struct Slow {
    tensor: Tensor,
    work: f64,
    idle: f64,
}

impl OnDevice for Slow {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        // The copy is on the batching thread; taking the batch is on this one.
        let on_its_way = std::thread::current().name() == Some("batch");
        if on_its_way {
            spend(self.work, self.idle);
        }
        let tensor = each(self.tensor)?;
        Ok(Self { tensor, ..self })
    }
}

/// Numbers, read as slowly as a batch of them is to be.
struct Numbers {
    batches: usize,
    work: f64,
    idle: f64,
    uneven: (usize, f64),
}

impl Source for Numbers {
    type Item = i64;

    fn len(&self) -> usize {
        self.batches * SIZE
    }

    fn get(&self, _: u64, index: usize) -> Result<i64, DataError> {
        let (every, times) = self.uneven;
        let long = every > 1 && (index / SIZE) % every == every - 1;
        let share = if long { times } else { 1.0 } / SIZE as f64;
        spend(share * self.work, share * self.idle);
        Ok(index as i64)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, i64>) -> ControlFlow<()> {
        (indices.iter()).try_for_each(|&index| each(self.get(epoch, index)))
    }

    fn place(&self, _: u64, index: usize) -> Place {
        Place::Item(index)
    }

    fn identity(&self) -> String {
        format!("{} slow batches", self.batches)
    }
}

/// Trains on so many batches.
pub(crate) fn measured(own: &Bottleneck, batches: usize) -> anyhow::Result<InputMeasures> {
    let of = |phase: Phase| {
        let (work, idle) = (own.work[phase as usize], own.idle[phase as usize]);
        (work / SIZE as f64, idle / SIZE as f64)
    };
    let numbers = Numbers {
        batches: if own.again { EPOCH } else { 2 * batches },
        work: own.work[Phase::Read as usize],
        idle: own.idle[Phase::Read as usize],
        uneven: own.uneven,
    };
    let step = |phase| {
        let (work, idle) = of(phase);
        move |number: i64| {
            spend(work, idle);
            Ok(number)
        }
    };
    let items = Dataset::new(numbers)
        .decode(step(Phase::Decode))
        .map(step(Phase::Map));
    if own.cached {
        taken(own, stacked(own, items.cache()), batches)
    } else {
        taken(own, stacked(own, items), batches)
    }
}

fn stacked<S: Source<Item = i64>>(own: &Bottleneck, items: Dataset<S>) -> Batches<S, Slow> {
    let at = |phase: Phase| (own.work[phase as usize], own.idle[phase as usize]);
    let (stack, (work, idle)) = (at(Phase::Stack), at(Phase::Copy));
    let batches = items.batch_with(SIZE, move |items| {
        spend(stack.0, stack.1);
        let tensor = Tensor::from_slice(&items);
        Ok(Slow { tensor, work, idle })
    });
    batches.workers(own.workers).prefetch(own.prefetch)
}

fn taken<S: Source>(
    own: &Bottleneck,
    loading: Batches<S, Slow>,
    batches: usize,
) -> anyhow::Result<InputMeasures> {
    let loading = if own.again {
        loading.endless()
    } else {
        loading
    };
    gpipe::tch::set_num_threads(own.threads as i32);
    let copies = own.work[Phase::Copy as usize] + own.idle[Phase::Copy as usize] > 0.0;
    let loading = if copies {
        loading.to(Device::Cuda(0))
    } else {
        loading
    };
    let mut loader = loading.load()?;
    let a = Tensor::ones([SIDE, SIDE], (Kind::Float, Device::Cpu));
    // The first epoch fills a cache.
    let warm_up = if own.cached { EPOCH } else { 4 };
    let mut first = None;
    for number in 0..batches + warm_up {
        let batch = loader.next().ok_or_else(|| anyhow::anyhow!("no batch"))??;
        if number == warm_up {
            first = Some(loader.mark());
        }
        drop(batch);
        for _ in 0..own.products {
            let _ = a.matmul(&a);
        }
    }
    let first = first.ok_or_else(|| anyhow::anyhow!("no batch"))?;
    let measures = loader.measures_since(&first);
    measures.ok_or_else(|| anyhow::anyhow!("no batch was measured"))
}
