//! Strategies that cut a [`Problem`].

use super::chain::{Chain, Cut, Part};
use super::memory::{AWAY, PLAIN, REDO};
use super::problem::Problem;
use super::search::{self, Found};
use super::{Solution, SolveError, Strategy, shortfall, traffic};
use crate::partition::{Partition, PartitionError};
use crate::units::Bytes;

impl Problem {
    /// Returns the best cut: [`Strategy::Profile`].
    ///
    /// Among the cuts with the smallest bottleneck it takes one with the least traffic, and among
    /// those one with evenly filled stages.
    ///
    /// # Errors
    /// If there are more stages than layers, or no cut fits the devices' memory.
    ///
    /// # Complexity
    /// O(b · stages · w) where b is the number of bisection steps, at most 60, and w the
    /// number of positions that a cut can have, at most the number of layers.
    ///
    /// # Source
    /// Bisection over the answer as in Pinar and Aykanat, *Fast optimal load balancing
    /// algorithms for 1D partitioning*, 2004, with the greedy probe replaced by a dynamic
    /// program over reachable cuts: see the module `probe`.
    pub fn solve(&self) -> Result<Solution, SolveError> {
        let chain = self.chain()?;
        match search::best(&chain) {
            Some(Found { cut, lower_bound }) => Ok(solution(&chain, &cut, lower_bound)),
            None => Err(shortfall::explain(&chain)),
        }
    }

    /// Same as [`solve`](Self::solve), without a search for the reason if no cut fits.
    pub(crate) fn solution(&self) -> Option<Solution> {
        let chain = self.chain().ok()?;
        let Found { cut, lower_bound } = search::best(&chain)?;
        Some(solution(&chain, &cut, lower_bound))
    }

    /// Returns the cut by a strategy.
    ///
    /// # Errors
    /// Those of [`solve`](Self::solve), and if the cut does not fit the devices' memory.
    pub fn solve_by(&self, strategy: &Strategy) -> Result<Solution, SolveError> {
        let layers = self.costs.len();
        let partition = match strategy {
            Strategy::Profile => return self.solve(),
            Strategy::Parameters => {
                let weights: Vec<u64> = self.costs.iter().map(|cost| cost.parameters.0).collect();
                Partition::by_weight(&weights, self.stages.len())?
            }
            Strategy::Uniform => Partition::uniform(layers, self.stages.len())?,
            Strategy::Manual(balance) => Partition::from_balance(layers, balance)?,
        };
        self.evaluate(&partition)
    }

    /// Evaluates a given cut, with recompute of stages as the rule requires.
    ///
    /// # Errors
    /// If the partition has another number of stages or layers, or does not fit the memory.
    pub fn evaluate(&self, partition: &Partition) -> Result<Solution, SolveError> {
        let (given, stages) = (partition.stages(), self.stages.len());
        if given != stages {
            return Err(SolveError::Stages { given, stages });
        }
        let (given, layers) = (partition.layers(), self.costs.len());
        if given != layers {
            return Err(SolveError::Layers { given, layers });
        }
        let chain = Chain::new(self);
        let cut = with_modes(&chain, partition);
        shortfall::check_fit(&chain, &cut)?;
        Ok(solution(&chain, &cut, 0))
    }

    /// Evaluates a given cut with these stages recomputing and offloading; none if it does not fit,
    /// or a stage has nothing to offload.
    pub(crate) fn with_ways(
        &self,
        partition: &Partition,
        recompute: &[bool],
        offload: &[bool],
    ) -> Option<Solution> {
        let (chain, cut) = self.as_given(partition, recompute, offload)?;
        shortfall::check_fit(&chain, &cut).ok()?;
        Some(solution(&chain, &cut, 0))
    }

    /// Same as `with_ways`, even if the cut does not fit.
    pub(crate) fn priced(
        &self,
        partition: &Partition,
        recompute: &[bool],
        offload: &[bool],
    ) -> Option<Solution> {
        let (chain, cut) = self.as_given(partition, recompute, offload)?;
        Some(solution(&chain, &cut, 0))
    }

    fn as_given(
        &self,
        partition: &Partition,
        recompute: &[bool],
        offload: &[bool],
    ) -> Option<(Chain, Cut)> {
        let chain = self.chain().ok()?;
        let starts = partition.cuts()[..chain.stages].iter().enumerate();
        let part = |(stage, &start): (usize, &usize)| {
            let redo = if recompute[stage] { REDO } else { PLAIN };
            let away = if offload[stage] { AWAY } else { PLAIN };
            let mode = redo | away;
            (!offload[stage] || chain.leaves(stage)).then_some(Part { start, mode })
        };
        let parts = starts.map(part).collect::<Option<_>>()?;
        Some((chain, Cut { parts }))
    }

    /// Returns the problem in integers, if every stage can have a layer.
    fn chain(&self) -> Result<Chain, PartitionError> {
        let (stages, layers) = (self.stages.len(), self.costs.len());
        if stages > layers {
            return Err(PartitionError::TooManyStages { stages, layers });
        }
        Ok(Chain::new(self))
    }
}

fn solution(chain: &Chain, cut: &Cut, lower_bound: i64) -> Solution {
    let ticks = |stage| chain.cost(stage, cut.parts[stage], cut.end(stage, chain));
    let bytes = |stage| Bytes(chain.bytes(stage, cut.parts[stage], cut.end(stage, chain)));
    let mut cuts: Vec<usize> = cut.parts.iter().map(|part| part.start).collect();
    cuts.push(chain.layers);
    Solution {
        partition: Partition::from_cuts(cuts),
        recompute: (cut.parts.iter())
            .map(|part| part.mode & REDO != 0)
            .collect(),
        offload: (cut.parts.iter().enumerate())
            .map(|(stage, part)| part.mode & AWAY != 0 && chain.leaves(stage))
            .collect(),
        stage_times: (0..chain.stages)
            .map(|stage| chain.micros(ticks(stage)))
            .collect(),
        bottleneck: chain.micros(chain.bottleneck(cut)),
        lower_bound: chain.micros(lower_bound),
        stage_bytes: (0..chain.stages).map(bytes).collect(),
        traffic: Bytes(traffic::traffic(chain, cut)),
    }
}

/// Returns the partition with each stage in the first permitted mode, changed where a device is too
/// full: the stages that save most first, each in the first mode that saves enough.
fn with_modes(chain: &Chain, partition: &Partition) -> Cut {
    let mode = chain.modes[0];
    let parts = partition.cuts()[..chain.stages].iter();
    let mut cut = Cut {
        parts: parts.map(|&start| Part { start, mode }).collect(),
    };
    let others = &chain.modes[1..];
    for (device, bytes) in chain.device_bytes(&cut).into_iter().enumerate() {
        let Some(cap) = chain.caps[device] else {
            continue;
        };
        let mut excess = bytes.saturating_sub(cap);
        if excess == 0 || others.is_empty() {
            continue;
        }
        let saved = |stage: usize, mode: usize| {
            let (part, end) = (cut.parts[stage], cut.end(stage, chain));
            let with = chain.bytes(stage, Part { mode, ..part }, end);
            chain.bytes(stage, part, end).saturating_sub(with)
        };
        let on = (0..chain.stages).filter(|&stage| chain.device[stage] == device);
        let mut stages: Vec<(usize, Vec<u64>)> = on
            .map(|stage| (stage, others.iter().map(|&m| saved(stage, m)).collect()))
            .collect();
        stages.sort_by_key(|(_, saved)| std::cmp::Reverse(saved.iter().copied().max()));
        for (stage, saved) in stages {
            let most = saved.iter().copied().max().unwrap_or(0);
            if excess == 0 || most == 0 {
                break;
            }
            let enough = excess.min(most);
            if let Some(place) = saved.iter().position(|&saves| saves >= enough) {
                cut.parts[stage].mode = others[place];
                excess = excess.saturating_sub(saved[place]);
            }
        }
    }
    cut
}
