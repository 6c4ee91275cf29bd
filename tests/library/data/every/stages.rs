//! Chains without files.

use std::collections::BTreeMap;

use gpipe::data::{DataError, Dataset, Iterated, Made, Order, Packing, Rows, Source, pad};
use gpipe::ndarray::Array2;

use super::{Chain, chain};

pub(super) fn numbers(len: usize) -> Dataset<impl Source<Item = i64> + Clone> {
    #[derive(Clone)]
    struct Numbers(usize);
    impl Source for Numbers {
        type Item = i64;
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, epoch: u64, index: usize) -> Result<i64, DataError> {
            Ok((1000 * (epoch % 7) as usize + index) as i64)
        }
        fn identity(&self) -> String {
            format!("{} numbers", self.0)
        }
    }
    Dataset::new(Numbers(len))
}

fn rows(len: usize) -> Dataset<impl Source<Item = Vec<i64>>> {
    numbers(len).map(|n| Ok(vec![n; 1 + n as usize % 5]))
}

/// Stages, and sources in memory.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn stages() -> Vec<Chain> {
    let mut all = vec![
        chain("Made Made::new", || {
            Dataset::new(Made::new(23, |n| Ok(n as i64))).batch(4)
        }),
        chain("Rows Rows::new", || {
            let array = Array2::from_shape_fn((23, 2), |(n, column)| (2 * n + column) as f32);
            Dataset::new(Rows::new(array).unwrap()).batch(4)
        }),
        chain("Iterated Iterated::new", || {
            let items = Iterated::new("numbers", |epoch| {
                Ok((0..23).map(move |n| Ok(n + epoch as i64)))
            });
            Dataset::new(items.unwrap()).batch(4)
        }),
        chain("Map MapRandom map map_random batch", || {
            let random = numbers(23).map_random(3, |n, random| Ok(n + random.below(9) as i64));
            random.map(|n| Ok(n as f32)).batch(4)
        }),
        chain("Shuffle shuffle", || numbers(23).shuffle(7, 1).batch(4)),
        chain("Range range", || numbers(23).range(2..21).unwrap().batch(4)),
        chain("Zip zip", || {
            numbers(23)
                .zip(rows(23).map(|row| Ok(row[0])))
                .unwrap()
                .batch(4)
        }),
        chain("Zip3 zip3", || {
            let third = numbers(23).map(|n| Ok(n as f32));
            numbers(23).zip3(numbers(23), third).unwrap().batch(4)
        }),
        chain("BTreeMap", || {
            let named = numbers(23).map(|n| Ok(BTreeMap::from([("n".to_owned(), n)])));
            named.batch(4)
        }),
        chain("MemoryCache cache", || {
            numbers(23).shuffle(9, 1).cache().batch(4)
        }),
        chain("Ordered shard", || {
            numbers(23).shuffle(50, 1).shard(1, 3).unwrap().batch(2)
        }),
        chain("stride", || numbers(23).stride(1, 3).unwrap().batch(2)),
        chain("repeat", || numbers(5).shuffle(50, 1).repeat(3).batch(4)),
        chain("subset", || {
            numbers(23).subset([3, 22, 3, 0, 9]).unwrap().batch(2)
        }),
        chain("sample", || numbers(23).sample(11, 4).unwrap().batch(4)),
        chain("sample_weighted", || {
            let weights: Vec<f64> = (0..23).map(|n| f64::from(n % 4)).collect();
            numbers(23)
                .sample_weighted(&weights, 11, 4)
                .unwrap()
                .batch(4)
        }),
        chain("filter", || {
            numbers(23).filter(|n| Ok(n % 3 != 0)).unwrap().batch(4)
        }),
        chain("FlatMap flat_map", || {
            let several = numbers(9).flat_map(|n| Ok(vec![n; n as usize % 1000 % 4]));
            several.unwrap().batch(4)
        }),
        chain("unbatch", || {
            let rows = numbers(9).map(|n| Ok(vec![n; 3]));
            rows.unbatch().unwrap().batch(4)
        }),
        chain("Joined Dataset::mix", || {
            let parts = [
                (numbers(13).boxed(), 2),
                (numbers(40).shuffle(9, 1).boxed(), 3),
            ];
            Dataset::mix(parts, 5).unwrap().batch(4)
        }),
        chain("Dataset::interleave", || {
            Dataset::interleave([numbers(13), numbers(4), numbers(9)], 2)
                .unwrap()
                .batch(4)
        }),
        chain("Dataset::concat", || {
            Dataset::concat([numbers(3), numbers(9)]).unwrap().batch(4)
        }),
        chain("bucket_by_length batch_with pad", || {
            let rows = rows(23).bucket_by_length(&[2, 4], 4, 1, Vec::len).unwrap();
            rows.batch_with(4, |rows| pad(&rows, 0, 1))
        }),
        chain("ordered", || {
            struct Backwards;
            impl Order for Backwards {
                fn count(&self) -> usize {
                    23
                }
                fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
                    (epoch, 22 - place)
                }
                fn identity(&self) -> String {
                    "backwards".to_owned()
                }
            }
            numbers(23).ordered(Backwards).batch(4)
        }),
    ];
    for packing in [Packing::Cut, Packing::Whole] {
        all.push(chain("Windowed pack", move || {
            let rows = Dataset::new(Made::new(23, |n| Ok(vec![n as i64; 1 + n % 5])));
            rows.pack(6, packing).unwrap().shuffle(50, 1).batch(3)
        }));
    }
    all
}
