//! A loader's measurements of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpipe::data::{Dataset, InputMeasures, Made, Phase, PhaseTime};
use gpipe::tch::Tensor;
use rustix::time::{ClockId, clock_gettime};

/// Keeps the thread busy for this much CPU time.
fn work(time: Duration) {
    let begin = cpu();
    while cpu().saturating_sub(begin) < time {}
}

/// CPU time of the thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures a loader while taking all batches.
fn measured(mut loader: gpipe::data::Loader<Tensor>) -> InputMeasures {
    for batch in loader.by_ref() {
        drop(batch.unwrap());
    }
    loader.measures().unwrap()
}

const UNIT: Duration = Duration::from_micros(500);

/// Four items per batch: the CPU times of the phases are in the order of their assigned work, and do not depend
/// on the other load of the machine.
#[test]
fn each_phase_has_its_own_time() {
    let items = Made::new(80, |number| {
        std::thread::sleep(UNIT);
        Ok(number as i64)
    });
    let decoded = Dataset::new(items).decode(|number| {
        work(UNIT);
        Ok(number)
    });
    let mapped = decoded.map(|number| {
        work(3 * UNIT);
        Ok(number)
    });
    let batches = mapped.batch_with(4, |items| {
        work(2 * UNIT);
        Ok(Tensor::from_slice(&items))
    });
    let measures = measured(batches.workers(2).load().unwrap());
    let unit = UNIT.as_secs_f64() * 1e3;
    let cpu = |phase| measures.of(phase).cpu_ms / unit;
    let [read, decode, map, stack] =
        [Phase::Read, Phase::Decode, Phase::Map, Phase::Stack].map(cpu);
    assert!(
        map > decode && decode > stack && stack > read,
        "{measures:?}"
    );
    assert!(
        (3.5..8.0).contains(&decode) && map > 2.0 * decode,
        "{measures:?}"
    );
    assert!(
        measures.of(Phase::Read).wall_ms > 3.5 * unit,
        "{measures:?}"
    );
    assert_eq!(measures.of(Phase::Copy), PhaseTime::default());
    assert_eq!((measures.workers, measures.batch_bytes), (2, Some(32)));
}

#[test]
fn functions_of_batches_are_maps_and_gathered_batches_are_read() {
    let rows = gpipe::ndarray::Array2::<f32>::ones((40, 3));
    let rows = Dataset::new(gpipe::data::Rows::new(rows).unwrap());
    let batches = rows.batch(4).map(|batch| {
        work(UNIT);
        Ok(batch)
    });
    let measures = measured(batches.load().unwrap());
    let unit = UNIT.as_secs_f64() * 1e3;
    assert!(measures.of(Phase::Map).cpu_ms > 0.9 * unit, "{measures:?}");
    assert_eq!(measures.of(Phase::Stack), PhaseTime::default());
}

/// Workers pause to measure a step without them; the pause must end if the step waits for them.
#[test]
fn a_step_that_waits_for_the_workers_goes_on() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let items = Made::new(1000, move |number| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(number as i64)
    });
    let mut loader = Dataset::new(items).batch(1).prefetch(8).load().unwrap();
    for taken in 0..40 {
        drop(loader.next().unwrap().unwrap());
        // Prefetched batches: eight in the queue, one in transit, two with the worker.
        while made.load(Ordering::Relaxed) < taken + 9 {
            std::thread::yield_now();
        }
    }
}

/// There is no diagnosis before the second batch, and no step without workers before some more.
#[test]
fn there_is_a_diagnosis_after_the_second_batch() {
    let mut loader = Dataset::new(Made::new(10, |number| Ok(number as i64)))
        .batch(1)
        .epochs(100)
        .load()
        .unwrap();
    assert!(loader.diagnosis().is_none());
    drop(loader.next().unwrap().unwrap());
    assert!(loader.diagnosis().is_none());
    drop(loader.next().unwrap().unwrap());
    let diagnosis = loader.diagnosis().unwrap();
    assert_eq!(diagnosis.measures.batches, 1);
    assert_eq!(diagnosis.measures.step_alone_ms, None);
    assert_eq!(diagnosis.measures.epoch_bytes, Some(80));
    for _ in 0..40 {
        drop(loader.next().unwrap().unwrap());
    }
    let share = loader.diagnosis().unwrap().measures.wait_share();
    assert!((0.0..=1.0).contains(&share), "{share}");
}
