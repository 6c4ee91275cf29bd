//! Combines several sources: mixed, interleaved or concatenated.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::plan::{Plan, Shares, Turns};
use crate::source::{Each, Gathered};
use crate::{DataError, Dataset, Place, Source};

/// Length limit up to which an identity lists all parts by name.
const NAMED: usize = 1 << 9;

/// The items of several sources: [`Dataset::mix`], [`Dataset::interleave`], [`Dataset::concat`].
#[derive(Clone)]
pub struct Joined<S> {
    parts: Vec<S>,
    plan: Plan,
    len: usize,
}

impl<S: Source> fmt::Debug for Joined<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("parts", &self.parts.len())
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl<S: Source> Dataset<S> {
    /// Erases the type of the chain, for [`Dataset::mix`] and similar methods.
    #[must_use]
    pub fn boxed(self) -> Dataset<Arc<dyn Source<Item = S::Item>>> {
        Dataset::new(Arc::new(self.source))
    }

    /// Mixes several sources in proportion to shares: with shares 3 and 1, every four consecutive
    /// items, counted from the first of an epoch, have exactly three of the first source and one of the
    /// second, at places drawn by the seed. An item's source and index are computed from its place.
    ///
    /// An epoch ends with a whole block of shares, before a source would run out; [`Dataset::repeat`] a
    /// source that is too small. Blocks take a source's items in its order; within a block, the seed
    /// decides. [`Dataset::boxed`] unifies sources of different types.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made};
    ///
    /// let web = Dataset::new(Made::new(900, |_| Ok(0_i64))).boxed();
    /// let books = Dataset::new(Made::new(30, |_| Ok(1_i64))).repeat(10).boxed();
    /// let mixed = Dataset::mix([(web, 3), (books, 1)], 7)?;
    /// for batch in mixed.batch(8).load()? {
    ///     assert_eq!(batch?.sum(gpipe::tch::Kind::Int64).int64_value(&[]), 2);
    /// }
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no source, a share is 0, or a source has fewer items than its share of a block.
    pub fn mix(
        parts: impl IntoIterator<Item = (Self, u64)>,
        seed: u64,
    ) -> Result<Dataset<Joined<S>>, DataError> {
        let (parts, shares): (Vec<S>, Vec<u64>) = parts
            .into_iter()
            .map(|(part, share)| (part.source, share))
            .unzip();
        some(&parts)?;
        let shares = Shares::new(&shares, seed).map_err(DataError::Settings)?;
        let blocks = |part: usize| parts[part].len() as u64 / shares.of(part);
        let (least, part) = (0..parts.len())
            .map(|part| (blocks(part), part))
            .min()
            .unwrap_or_default();
        if least == 0 {
            return Err(DataError::Settings(format!(
                "{} are fewer than their share, {} of every {}: repeat them, or take smaller shares",
                parts[part].identity(),
                shares.of(part),
                shares.block()
            )));
        }
        let len = least.saturating_mul(shares.block()) as usize;
        let plan = Plan::Mixed(shares);
        Ok(Dataset::new(Joined { parts, plan, len }))
    }

    /// Takes `block` items of each source in turn, until all are used up: for example, files of sorted
    /// items are mixed, while each is read in order.
    ///
    /// *Complexity*: O(number of sources) per item.
    ///
    /// # Errors
    /// There is no source, or `block` is 0.
    pub fn interleave(
        parts: impl IntoIterator<Item = Self>,
        block: usize,
    ) -> Result<Dataset<Joined<S>>, DataError> {
        let parts: Vec<S> = parts.into_iter().map(|part| part.source).collect();
        some(&parts)?;
        if block == 0 {
            let what = "0 items of each source in turn: it has to be at least 1";
            return Err(DataError::Settings(what.to_owned()));
        }
        let lens = parts.iter().map(|part| part.len() as u64).collect();
        let len = total(&parts);
        let plan = Plan::InTurn(Turns::new(lens, block as u64));
        Ok(Dataset::new(Joined { parts, plan, len }))
    }

    /// Concatenates several sources.
    ///
    /// # Errors
    /// There is no source.
    pub fn concat(parts: impl IntoIterator<Item = Self>) -> Result<Dataset<Joined<S>>, DataError> {
        let parts: Vec<S> = parts.into_iter().map(|part| part.source).collect();
        some(&parts)?;
        let firsts = parts.iter().scan(0_usize, |next, part| {
            let first = *next;
            *next = next.saturating_add(part.len());
            Some(first)
        });
        let plan = Plan::Chained(firsts.collect());
        let len = total(&parts);
        Ok(Dataset::new(Joined { parts, plan, len }))
    }
}

fn some<S>(parts: &[S]) -> Result<(), DataError> {
    if parts.is_empty() {
        return Err(DataError::Settings("no source was named".to_owned()));
    }
    Ok(())
}

fn total<S: Source>(parts: &[S]) -> usize {
    let lens = parts.iter().map(Source::len);
    lens.fold(0, usize::saturating_add)
}

impl<S: Source> Source for Joined<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        let (part, number) = self.plan.origin(epoch, index);
        self.parts[part].get(epoch, number)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        let (mut run, mut own) = (Vec::new(), 0);
        for &index in indices {
            let (part, number) = self.plan.origin(epoch, index);
            if part != own && !run.is_empty() {
                self.parts[own].batch(epoch, &run, &mut *each)?;
                run.clear();
            }
            own = part;
            run.push(number);
        }
        if run.is_empty() {
            return ControlFlow::Continue(());
        }
        self.parts[own].batch(epoch, &run, each)
    }

    /// Gathers in one pass if a single source has all items.
    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let first = self.plan.origin(epoch, *indices.first()?).0;
        let numbers = indices.iter().map(|&index| {
            let (part, number) = self.plan.origin(epoch, index);
            (part == first).then_some(number)
        });
        let numbers = numbers.collect::<Option<Vec<_>>>()?;
        self.parts[first].gather(epoch, &numbers)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        let (part, number) = self.plan.origin(epoch, index);
        self.parts[part].place(epoch, number)
    }

    /// For many sources, the first one's identity and a checksum of all.
    fn identity(&self) -> String {
        let names: Vec<String> = self.parts.iter().map(Source::identity).collect();
        let all = names.join("; ");
        let of = if all.len() <= NAMED {
            all
        } else {
            let sum = crc32c::crc32c(all.as_bytes());
            let first = names.first().map_or("", String::as_str);
            let few: String = first.chars().take(NAMED / 2).collect();
            format!("{few}; and so on, checksum {sum:08x}")
        };
        let parts = self.parts.len();
        match &self.plan {
            Plan::Mixed(shares) => {
                let sum = (shares.firsts.iter()).fold(0, |sum, first| {
                    crc32c::crc32c_append(sum, &first.to_le_bytes())
                });
                let (block, seed) = (shares.block(), shares.seed);
                format!(
                    "{parts} sources mixed with seed {seed} in shares of {block} with checksum \
                     {sum:08x}: {of}"
                )
            }
            Plan::InTurn(turns) => format!("{parts} sources in turns of {}: {of}", turns.block),
            Plan::Chained(_) => format!("{parts} sources one behind the other: {of}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Made;
    use crate::stages::plan::divisor;

    /// Items that hold their source and index.
    fn part(part: usize, len: usize) -> Dataset<Arc<dyn Source<Item = (usize, usize)>>> {
        Dataset::new(Made::new(len, move |number| Ok((part, number)))).boxed()
    }

    fn all<S: Source>(chain: &Dataset<S>, epoch: u64) -> Vec<S::Item> {
        let each = (0..chain.len()).map(|place| chain.get(epoch, place).unwrap());
        each.collect()
    }

    proptest! {
        #[test]
        fn every_block_has_exact_shares_and_every_item_comes_once(
            shares in prop::collection::vec(1_u64..6, 1..5), seed: u64, epoch in 0_u64..3,
            rest in 0_usize..20,
        ) {
            let lens = shares.iter().map(|share| 4 * *share as usize + rest);
            let parts = lens.enumerate().map(|(number, len)| part(number, len));
            let chain = Dataset::mix(parts.zip(shares.iter().copied()), seed).unwrap();
            let divisor = shares.iter().copied().reduce(divisor).unwrap();
            let block: u64 = shares.iter().map(|share| share / divisor).sum();
            let all = all(&chain, epoch);
            prop_assert_eq!(all.len() as u64 % block, 0);
            for items in all.chunks(block as usize) {
                for (number, share) in shares.iter().enumerate() {
                    let own = items.iter().filter(|(part, _)| *part == number).count();
                    prop_assert_eq!(own as u64, share / divisor);
                }
            }
            for number in 0..shares.len() {
                let own = all.iter().filter(|(part, _)| *part == number);
                let mut own: Vec<usize> = own.map(|(_, item)| *item).collect();
                own.sort_unstable();
                prop_assert_eq!(own.clone(), (0..own.len()).collect::<Vec<_>>());
            }
            // One more block would use up a source.
            let blocks = all.len() as u64 / block;
            let used = |share: &u64| (4 * *share as usize + rest) as u64 / (share / divisor);
            prop_assert!(shares.iter().any(|share| used(share) == blocks));
        }

        /// Compares with a direct simulation of taking turns.
        #[test]
        fn turns_are_those_of_taking_turns(
            lens in prop::collection::vec(0_usize..30, 1..7), block in 1_usize..6,
        ) {
            let mut wanted = Vec::new();
            let mut next = vec![0; lens.len()];
            while wanted.len() < lens.iter().sum() {
                for (number, len) in lens.iter().enumerate() {
                    for _ in 0..block.min(len - next[number]) {
                        wanted.push((number, next[number]));
                        next[number] += 1;
                    }
                }
            }
            let parts = || lens.iter().enumerate().map(|(number, len)| part(number, *len));
            prop_assert_eq!(all(&Dataset::interleave(parts(), block).unwrap(), 0), wanted);
            let row: Vec<_> = (lens.iter().enumerate())
                .flat_map(|(number, len)| (0..*len).map(move |item| (number, item)))
                .collect();
            prop_assert_eq!(all(&Dataset::concat(parts()).unwrap(), 0), row);
        }
    }

    #[test]
    fn blocks_are_drawn_anew() {
        let chain = Dataset::mix([(part(0, 400), 1), (part(1, 400), 1)], 3).unwrap();
        let epoch = |epoch| -> Vec<usize> { all(&chain, epoch).iter().map(|own| own.0).collect() };
        let first = epoch(0);
        assert_ne!(first, epoch(1));
        let blocks: std::collections::HashSet<_> = first.chunks(2).collect();
        assert_eq!(blocks.len(), 2, "always the same way round");
    }

    #[test]
    fn endless_sources_can_be_joined() {
        let endless = || part(0, usize::MAX);
        let mixed = Dataset::mix([(endless(), 3), (endless(), 2)], 1).unwrap();
        assert!(mixed.len() > usize::MAX / 4);
        let last = mixed.len() - 1;
        assert!(mixed.get(0, last).is_ok());
        let turns = Dataset::interleave([endless(), endless()], 2).unwrap();
        assert_eq!(turns.get(0, usize::MAX - 1).unwrap().1, usize::MAX / 2 - 1);
    }

    #[test]
    fn mixes_that_cannot_be_are_refused() {
        let error = |result: Result<Dataset<_>, DataError>| match result {
            Err(error) => error.to_string(),
            Ok::<Dataset<Joined<Arc<dyn Source<Item = (usize, usize)>>>>, _>(_) => String::new(),
        };
        let mixed = |parts: Vec<(Dataset<_>, u64)>| error(Dataset::mix(parts, 0));
        assert!(mixed(Vec::new()).contains("no source"));
        assert!(mixed(vec![(part(0, 5), 0)]).contains("share of 0"));
        assert!(mixed(vec![(part(0, 5), u64::MAX), (part(0, 9), 1)]).contains("more than"));
        let few = mixed(vec![(part(0, 100), 1), (part(1, 5), 9)]);
        assert!(
            few.contains("5 items are fewer than their share, 9 of every 10"),
            "{few}"
        );
        assert!(error(Dataset::interleave([part(0, 2)], 0)).contains("at least 1"));
        // An identity too long for a saved state becomes a checksum.
        let many = Dataset::concat((0..2000).map(|own| part(own, own + 1))).unwrap();
        assert!(many.identity().len() < 700, "{}", many.identity());
    }
}
