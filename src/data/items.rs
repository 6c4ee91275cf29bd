//! Triples, named parts and texts as items.

use std::collections::BTreeMap;

use tch::Tensor;

use super::stack::Stacking;
use super::{DataError, Dataset, Gathered, OnDevice, Place, Source, Stack, Store};
use gpipe_torch::TorchError;

impl<A: Stack, B: Stack, C: Stack> Stack for (A, B, C) {
    type Batch = (A::Batch, B::Batch, C::Batch);

    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch> {
        let mut parts = (Vec::new(), Vec::new(), Vec::new());
        for (a, b, c) in items {
            parts.0.push(a);
            parts.1.push(b);
            parts.2.push(c);
        }
        Ok((A::stack(parts.0)?, B::stack(parts.1)?, C::stack(parts.2)?))
    }

    fn stacking(count: usize) -> Box<dyn Stacking<Self, Self::Batch>>
    where
        Self: 'static,
    {
        let (a, b, c) = (A::stacking(count), B::stacking(count), C::stacking(count));
        Box::new(Three(a, b, c))
    }

    fn gathered(batch: Gathered) -> Option<Self::Batch> {
        let Gathered::Pair(first, rest) = batch else {
            return None;
        };
        let (b, c) = <(B, C)>::gathered(*rest)?;
        Some((A::gathered(*first)?, b, c))
    }
}

/// The three batches of triples.
struct Three<A, X, B, Y, C, Z>(
    Box<dyn Stacking<A, X>>,
    Box<dyn Stacking<B, Y>>,
    Box<dyn Stacking<C, Z>>,
);

impl<A, X, B, Y, C, Z> Stacking<(A, B, C), (X, Y, Z)> for Three<A, X, B, Y, C, Z> {
    fn push(&mut self, (a, b, c): (A, B, C)) {
        self.0.push(a);
        self.1.push(b);
        self.2.push(c);
    }

    fn finish(self: Box<Self>) -> anyhow::Result<(X, Y, Z)> {
        Ok((self.0.finish()?, self.1.finish()?, self.2.finish()?))
    }
}

/// Named parts: the parts of each name are stacked, and all items have the same names.
impl<T: Stack> Stack for BTreeMap<String, T> {
    type Batch = BTreeMap<String, T::Batch>;

    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch> {
        let mut items = items.into_iter();
        let first = items.next().unwrap_or_default();
        let mut parts: BTreeMap<String, Vec<T>> = first
            .into_iter()
            .map(|(name, part)| (name, vec![part]))
            .collect();
        for (place, item) in (1..).zip(items) {
            anyhow::ensure!(
                item.keys().eq(parts.keys()),
                "item {place} has the parts {:?}, the first one {:?}: make them the same in `map`",
                item.keys().collect::<Vec<_>>(),
                parts.keys().collect::<Vec<_>>()
            );
            for (part, (_, all)) in item.into_values().zip(&mut parts) {
                all.push(part);
            }
        }
        let stacked = parts.into_iter().map(|(name, parts)| {
            let batch = T::stack(parts);
            let batch = batch.map_err(|error| error.context(format!("part `{name}`")))?;
            Ok((name, batch))
        });
        stacked.collect()
    }
}

/// Texts are collected, not stacked.
impl Stack for String {
    type Batch = Vec<String>;

    fn stack(items: Vec<Self>) -> anyhow::Result<Vec<String>> {
        Ok(items)
    }
}

impl<A: OnDevice, B: OnDevice, C: OnDevice> OnDevice for (A, B, C) {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        let (a, b) = (self.0.map_tensors(each)?, self.1.map_tensors(each)?);
        Ok((a, b, self.2.map_tensors(each)?))
    }
}

impl<T: OnDevice> OnDevice for BTreeMap<String, T> {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        let parts = self.into_iter();
        parts
            .map(|(name, part)| Ok((name, part.map_tensors(each)?)))
            .collect()
    }
}

/// Texts have no tensors.
impl OnDevice for Vec<String> {
    fn map_tensors(
        self,
        _: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        Ok(self)
    }
}

impl<A: Store, B: Store, C: Store> Store for (A, B, C) {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        self.0.put(bytes)?;
        self.1.put(bytes)?;
        self.2.put(bytes)
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        Ok((A::take(bytes)?, B::take(bytes)?, C::take(bytes)?))
    }
}

impl<T: Store> Store for BTreeMap<String, T> {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        (self.len() as u64).put(bytes)?;
        for (name, part) in self {
            name.put(bytes)?;
            part.put(bytes)?;
        }
        Ok(())
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        let count = u64::take(bytes)?;
        (0..count)
            .map(|_| Ok((String::take(bytes)?, T::take(bytes)?)))
            .collect()
    }
}

/// Triples of items with the same index: [`Dataset::zip3`].
#[derive(Debug, Clone)]
pub struct Zip3<A, B, C> {
    parts: (A, B, C),
}

impl<A: Source> Dataset<A> {
    /// Makes triples with the items of two other chains.
    ///
    /// # Errors
    /// The lengths differ.
    pub fn zip3<B: Source, C: Source>(
        self,
        second: Dataset<B>,
        third: Dataset<C>,
    ) -> Result<Dataset<Zip3<A, B, C>>, DataError> {
        let parts = (self.source, second.source, third.source);
        let lens = [parts.0.len(), parts.1.len(), parts.2.len()];
        if lens[1..].iter().any(|len| *len != lens[0]) {
            return Err(DataError::Settings(format!(
                "as many items are needed in all three: there are {}, {} and {}",
                parts.0.identity(),
                parts.1.identity(),
                parts.2.identity()
            )));
        }
        Ok(Dataset::new(Zip3 { parts }))
    }
}

impl<A: Source, B: Source, C: Source> Source for Zip3<A, B, C> {
    type Item = (A::Item, B::Item, C::Item);

    fn len(&self) -> usize {
        self.parts.0.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError> {
        let (a, b) = (
            self.parts.0.get(epoch, index)?,
            self.parts.1.get(epoch, index)?,
        );
        Ok((a, b, self.parts.2.get(epoch, index)?))
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let a = self.parts.0.gather(epoch, indices)?;
        let b = self.parts.1.gather(epoch, indices)?;
        let c = self.parts.2.gather(epoch, indices)?;
        Some(Gathered::pair(a, Gathered::pair(b, c)))
    }

    /// Returns the place of the first part.
    fn place(&self, epoch: u64, index: usize) -> Place {
        self.parts.0.place(epoch, index)
    }

    fn identity(&self) -> String {
        let (a, b, c) = &self.parts;
        format!(
            "({}) with ({}) and ({})",
            a.identity(),
            b.identity(),
            c.identity()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triples_become_three_batches_however_they_come() {
        let items = || (0..3_i64).map(|n| (vec![n, n], n as f32, Tensor::from(n)));
        let (rows, numbers, tensors) = Stack::stack(items().collect()).unwrap();
        assert_eq!(
            (rows.size(), numbers.size(), tensors.size()),
            (vec![3, 2], vec![3], vec![3])
        );
        let mut one_by_one = <(Vec<i64>, f32, Tensor)>::stacking(3);
        items().for_each(|item| one_by_one.push(item));
        assert_eq!(one_by_one.finish().unwrap(), (rows, numbers, tensors));
    }

    #[test]
    fn parts_are_stacked_by_name() {
        let item =
            |n: i64| BTreeMap::from([("x".to_owned(), vec![n; 2]), ("y".to_owned(), vec![n])]);
        let batch = Stack::stack(vec![item(1), item(2), item(3)]).unwrap();
        assert_eq!(
            (batch["x"].size(), batch["y"].size()),
            (vec![3, 2], vec![3, 1])
        );
        let mut other = item(2);
        let part = other.remove("y").unwrap();
        other.insert("z".to_owned(), part);
        let error = Stack::stack(vec![item(1), other]).unwrap_err().to_string();
        assert!(
            error.contains("item 1 has the parts [\"x\", \"z\"]"),
            "{error}"
        );
        let mut other = item(2);
        other.insert("y".to_owned(), vec![1, 2]);
        let error = Stack::stack(vec![item(1), other]).unwrap_err();
        assert!(
            format!("{error:#}").contains("part `y`: item 1 has 2 numbers"),
            "{error:#}"
        );
    }

    #[test]
    fn triples_and_named_parts_are_cached() {
        type Item = (u8, String, BTreeMap<String, f32>);
        let item = (
            1_u8,
            "text".to_owned(),
            BTreeMap::from([("a".to_owned(), 0.5_f32), ("b".to_owned(), -2.0)]),
        );
        let mut bytes = Vec::new();
        item.put(&mut bytes).unwrap();
        assert_eq!(Item::take(&mut &bytes[..]).unwrap(), item);
        for end in 0..bytes.len() {
            assert!(Item::take(&mut &bytes[..end]).is_err(), "cut at {end}");
        }
    }
}
