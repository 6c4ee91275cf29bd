//! Parameter groups, each with its own update.

use std::fmt;
use std::sync::Arc;

use super::OptimizerKind;

/// Predicate on parameter names that selects a group.
type Predicate = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The default update, and the groups that have one of their own.
#[doc(alias = "param_groups")]
#[derive(Debug, Clone)]
pub struct Groups {
    default: OptimizerKind,
    others: Vec<Group>,
    offload: bool,
    window: u64,
}

/// Bytes of the parameters that are updated at a time if optimizer states are offloaded.
const WINDOW: u64 = 64 << 20;

#[derive(Clone)]
struct Group {
    matches: Predicate,
    kind: OptimizerKind,
    /// Its learning rate relative to the default; `None` if the default was 0.
    share: Option<f64>,
}

impl Groups {
    pub(crate) fn new(default: OptimizerKind) -> Self {
        Self {
            default,
            others: Vec::new(),
            offload: false,
            window: WINDOW,
        }
    }

    /// Returns whether optimizer states are offloaded: in host memory between steps.
    pub(crate) fn offload(&self) -> bool {
        self.offload
    }

    pub(crate) fn set_offload(&mut self, offload: bool) {
        self.offload = offload;
    }

    /// Bytes of the parameters that are updated at a time then; a larger one is updated alone.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    pub(crate) fn push(&mut self, matches: Predicate, kind: OptimizerKind) {
        let share = kind.lr() / self.default.lr();
        self.others.push(Group {
            matches,
            kind,
            share: share.is_finite().then_some(share),
        });
    }

    /// The first group that the parameter belongs to; none if it has the default update.
    pub fn of(&self, name: &str) -> Option<usize> {
        self.others.iter().position(|group| (group.matches)(name))
    }

    pub fn kind(&self, group: Option<usize>) -> &OptimizerKind {
        let own = group.and_then(|group| self.others.get(group));
        own.map_or(&self.default, |group| &group.kind)
    }

    /// Returns whether a parameter's first update differs from later ones, because its momentum
    /// begins undampened.
    pub(crate) fn dampen(&self) -> bool {
        let own = self.others.iter().map(|group| &group.kind);
        let mut kinds = own.chain([&self.default]);
        kinds.any(|kind| {
            matches!(kind, OptimizerKind::Sgd(sgd) if sgd.momentum != 0.0 && sgd.dampening != 0.0)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.others.len()
    }

    /// Sets the default's learning rate; each group's keeps its share of it.
    pub(crate) fn set_lr(&mut self, lr: f64) {
        self.default.set_lr(lr);
        for group in &mut self.others {
            if let Some(share) = group.share {
                group.kind.set_lr(lr * share);
            }
        }
    }

    /// Checks that updates are defined for all hyperparameters.
    ///
    /// # Errors
    /// The first invalid one, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.default
            .check()
            .map_err(|why| format!("the optimizer's {why}"))?;
        self.others
            .iter()
            .enumerate()
            .try_for_each(|(number, group)| {
                let checked = group.kind.check();
                checked.map_err(|why| format!("the optimizer's group {number}, {why}"))
            })
    }
}

/// Formats all hyperparameters: two processes with the same text update alike.
impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.default)?;
        for (number, group) in self.others.iter().enumerate() {
            write!(f, ", group {number}: {:?}", group.kind)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("kind", &self.kind)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, Sgd};

    fn adamw(lr: f64) -> OptimizerKind {
        let base = AdamW::default();
        AdamW { lr, ..base }.into()
    }

    #[test]
    fn the_first_group_that_fits_is_a_parameters_own() {
        let mut groups = Groups::new(adamw(1.0));
        groups.push(Arc::new(|name| name.starts_with("embed")), adamw(2.0));
        groups.push(
            Arc::new(|name| name.ends_with("bias")),
            Sgd::default().into(),
        );
        let own = |name: &str| groups.of(name);
        assert_eq!(own("embed.bias"), Some(0));
        assert_eq!(own("head.bias"), Some(1));
        assert_eq!(own("head.weight"), None);
        assert_eq!(groups.kind(own("embed.bias")), &adamw(2.0));
        assert_eq!(groups.kind(None), &adamw(1.0));
    }

    #[test]
    fn learning_rates_keep_their_ratio_through_zero() {
        let mut groups = Groups::new(adamw(0.4));
        groups.push(Arc::new(|_| true), adamw(0.1));
        groups.push(Arc::new(|_| true), adamw(0.4));
        for lr in [0.3, 0.0, 0.7] {
            groups.set_lr(lr);
            assert_eq!(groups.kind(None).lr(), lr);
            assert_eq!(groups.kind(Some(0)).lr(), lr * 0.25);
            assert_eq!(groups.kind(Some(1)).lr(), lr);
        }
        groups.set_lr(0.0);
        groups.push(Arc::new(|_| true), adamw(0.1));
        groups.set_lr(0.4);
        assert_eq!(groups.kind(Some(2)).lr(), 0.1, "it had no ratio to keep");
    }

    #[test]
    fn wrong_numbers_are_told_with_their_group() {
        let mut groups = Groups::new(adamw(0.1));
        groups.push(Arc::new(|_| true), adamw(0.2));
        assert_eq!(groups.check(), Ok(()));
        groups.push(Arc::new(|_| true), adamw(-0.5));
        let message = groups.check().unwrap_err();
        assert!(message.contains("group 1, AdamW: lr is -0.5"), "{message}");
        groups.set_lr(f64::NAN);
        let message = groups.check().unwrap_err();
        assert!(
            message.contains("optimizer's AdamW: lr is NaN"),
            "{message}"
        );
    }
}
