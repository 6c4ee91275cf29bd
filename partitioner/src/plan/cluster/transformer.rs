//! The choice for a transformer given by its shapes, including the size of its tensor-parallel groups.

use super::{ClusterOptions, plan_cluster};
use crate::analytic::{Efficiency, TensorGroup, Transformer};
use crate::cost::Link;
use crate::machine::cluster::{Card, Cluster, ClusterError, NodeKind, Peak};
use crate::plan::{Plan, PlanError, PlanOptions};
use crate::profile::Profile;
use crate::units::{Bytes, Micros};

/// Bytes of optimizer state per byte of a 16-bit parameter: Adam's two moments and the parameter itself, each
/// in 32 bits (Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3.1: 12 of 16 bytes per parameter).
const MIXED_PRECISION_STATE: f64 = 6.0;

/// A cluster, a mini-batch and the choices fixed in advance, for a transformer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransformerOptions {
    /// All options except the groups. Replicas and devices count groups, and cards must have a known peak.
    pub cluster: ClusterOptions,
    /// Cards of a tensor-parallel group; none: to be chosen.
    pub tensor_parallel: Option<usize>,
    /// Whether groups divide the sequence in parts of a layer that they do not divide otherwise.
    pub sequence_parallel: bool,
    /// Efficiency of products and links.
    pub efficiency: Efficiency,
}

impl TransformerOptions {
    /// Creates options with everything to be chosen, for Adam in mixed precision: 16 bytes per parameter, of
    /// which 12 can be shared among replicas. Any number of replicas is possible.
    pub fn new(cluster: Cluster, batch: usize) -> Self {
        let mut own = ClusterOptions::new(cluster, batch);
        own.optimizer_state = MIXED_PRECISION_STATE;
        own.tree = false;
        Self {
            cluster: own,
            tensor_parallel: None,
            sequence_parallel: true,
            efficiency: Efficiency::STATED,
        }
    }

    /// Returns the costs of a transformer on groups of `group` cards, and the input of [`plan_cluster`]: a
    /// cluster of groups, with the speed at which layers run there relative to the first kind of node.
    ///
    /// # Errors
    /// [`PlanError::Options`] if cards have no peak, or cannot be grouped so.
    pub fn grouped(
        &self,
        transformer: &Transformer,
        group: usize,
    ) -> Result<(Profile, ClusterOptions), PlanError> {
        let wrong = |error: ClusterError| PlanError::Options(error.to_string());
        let cluster = &self.cluster.cluster;
        let grouped = cluster.grouped(group).map_err(wrong)?;
        let of = |kind: &NodeKind| {
            let peak = peak(kind.card)?;
            self.profile(transformer, (peak, group), cluster.link_inside())
        };
        let first = of(&cluster.kinds()[0])?;
        let mut kinds = grouped.kinds().to_vec();
        for (kind, own) in kinds.iter_mut().zip(cluster.kinds()) {
            kind.card.speed *= work(&first) / work(&of(own)?);
        }
        let mut options = self.cluster.clone();
        options.cluster = grouped.with_kinds(kinds).map_err(wrong)?;
        Ok((first, options))
    }

    fn profile(
        &self,
        transformer: &Transformer,
        (peak, group): (Peak, usize),
        link: Option<Link>,
    ) -> Result<Profile, PlanError> {
        let group = TensorGroup::new(peak)
            .with_cards(group, link)
            .with_sequence_parallel(self.sequence_parallel)
            .with_efficiency(self.efficiency);
        let profile = transformer.profile(&group);
        profile.map_err(|error| PlanError::Options(error.to_string()))
    }

    /// Returns the possible sizes of groups: they divide the cards of each node, and the heads.
    fn groups(&self, transformer: &Transformer) -> Result<Vec<usize>, PlanError> {
        let kinds = self.cluster.cluster.kinds();
        let most = kinds.iter().map(|kind| kind.cards).min().unwrap_or(1);
        let sizes = [
            transformer.heads,
            transformer.kv_heads,
            transformer.feed_forward,
        ];
        let divides = |own: &usize| {
            let cards = kinds.iter().all(|kind| kind.cards.is_multiple_of(*own));
            cards && sizes.iter().all(|size| size.is_multiple_of(*own))
        };
        let Some(asked) = self.tensor_parallel else {
            return Ok((1..=most).filter(divides).collect());
        };
        if asked == 0 || sizes.iter().any(|size| !size.is_multiple_of(asked)) {
            let [heads, kv_heads, feed_forward] = sizes;
            return Err(PlanError::Options(format!(
                "groups of {asked} cards: must divide the {heads} heads, the {kv_heads} of keys and \
                 values and the feed-forward part of {feed_forward}"
            )));
        }
        Ok(vec![asked])
    }
}

fn peak(card: Card) -> Result<Peak, PlanError> {
    card.peak.ok_or_else(|| {
        PlanError::Options(
            "nobody says what the cards compute at best, and costs are computed from that: use a \
             ready-made node (--cluster dgx-a100), or give teraflops and memory_bandwidth in the \
             file"
                .to_owned(),
        )
    })
}

/// Microseconds per sample.
fn work(profile: &Profile) -> f64 {
    let layers = profile.layers().iter();
    layers
        .map(|own| (own.times.forward + own.times.joint()).get())
        .sum()
}

/// Result for a transformer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransformerPlan {
    /// The costs on the chosen groups.
    pub profile: Profile,
    /// Input of [`plan_cluster`] for these groups.
    pub asked: ClusterOptions,
    /// The plan, in which each device is such a group ([`Plan::tensor_parallel`]).
    pub plan: Plan,
    /// The options of one pipeline with which it is simulated.
    pub options: PlanOptions,
    /// The steps of the best plans with groups of other sizes; none if nothing fits.
    pub others: Vec<(usize, Option<Micros>)>,
}

impl TransformerPlan {
    /// Share of the peak of all the cluster's cards at which a step's matrix products run, without those of
    /// recompute (model FLOPs utilization).
    ///
    /// *Returns* none if cards have no peak, which never happens for plans made here.
    pub fn utilization(&self, transformer: &Transformer) -> Option<f64> {
        let cluster = &self.asked.cluster;
        let flops = cluster.kinds().iter().map(|kind| {
            let cards = (kind.nodes * kind.cards) as f64;
            Some(cards * kind.card.peak?.flops)
        });
        let flops: f64 = flops.sum::<Option<f64>>()?;
        let step = transformer.flops() * self.asked.batch as f64;
        Some(step / (self.plan.step.get() * 1e-6 * flops))
    }
}

/// Chooses for a transformer everything that [`plan_cluster`] chooses, and the cards of tensor-parallel
/// groups, which are one device each.
///
/// # Errors
/// As [`plan_cluster`]; [`PlanError::Shortage`] counts cards, in groups of any size.
///
/// # Complexity
/// That of [`plan_cluster`] for each size of group that divides the cards of a node.
///
/// # Examples
/// ```
/// use gpipe_partitioner::machine::cluster::KnownNode;
/// use gpipe_partitioner::{Transformer, TransformerOptions, plan_transformer};
///
/// let model: Transformer = "llama2-7b".parse()?;
/// let cluster = KnownNode::named("dgx-h100")?.cluster(1)?;
/// let chosen = plan_transformer(&model, &TransformerOptions::new(cluster, 64))?;
/// assert_eq!(chosen.plan.tensor_parallel * chosen.asked.cluster.cards(), 8);
/// let share = chosen.utilization(&model).unwrap();
/// assert!(share > 0.3 && share < 0.7, "{share}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan_transformer(
    transformer: &Transformer,
    options: &TransformerOptions,
) -> Result<TransformerPlan, PlanError> {
    let mut best: Option<TransformerPlan> = None;
    let mut steps = Vec::new();
    let mut refusals = Vec::new();
    for group in options.groups(transformer)? {
        let (profile, asked) = options.grouped(transformer, group)?;
        match plan_cluster(&profile, &asked) {
            Ok((plan, own)) => {
                steps.push((group, Some(plan.step)));
                if best.as_ref().is_none_or(|best| plan.step < best.plan.step) {
                    best = Some(TransformerPlan {
                        profile,
                        asked,
                        plan: Plan {
                            tensor_parallel: group,
                            ..plan
                        },
                        options: own,
                        others: Vec::new(),
                    });
                }
            }
            // Groups of one size may fail where those of another work.
            Err(error) => {
                steps.push((group, None));
                refusals.push((group, error));
            }
        }
    }
    let Some(mut best) = best else {
        return Err(refusal(refusals));
    };
    let own = best.plan.tensor_parallel;
    best.others = steps.into_iter().filter(|step| step.0 != own).collect();
    Ok(best)
}

/// Returns why nothing is possible: if memory is short, the least shortage of all groups.
fn refusal(refusals: Vec<(usize, PlanError)>) -> PlanError {
    let mut shortage: Option<PlanError> = None;
    let mut other = None;
    for (group, error) in refusals {
        let PlanError::Shortage {
            cards,
            memory,
            states,
            more,
            more_cards,
        } = error
        else {
            other = Some(error);
            continue;
        };
        let each = |all: Bytes| Bytes(all.get().div_ceil(group as u64));
        let own = PlanError::Shortage {
            cards: cards * group,
            memory: each(memory),
            states,
            more: more.map(each),
            more_cards: more_cards.map(|own| own * group),
        };
        shortage = Some(match shortage {
            Some(before) => least(before, own),
            None => own,
        });
    }
    let none = || PlanError::Options("there is no size of group to try".to_owned());
    shortage.or(other).unwrap_or_else(none)
}

/// Returns the lesser of two shortages.
fn least(mut a: PlanError, b: PlanError) -> PlanError {
    let PlanError::Shortage {
        more: first,
        more_cards: first_cards,
        ..
    } = &mut a
    else {
        return b;
    };
    if let PlanError::Shortage {
        more, more_cards, ..
    } = b
    {
        *first = [*first, more].into_iter().flatten().min();
        *first_cards = [*first_cards, more_cards].into_iter().flatten().min();
    }
    a
}
