//! What is trained: the flags, the model and the data that they name.

use gpipe_partitioner::Plan;

use super::options::Args;
use super::{check, failure, planned};
use crate::cli::Failure;
use crate::cli::feed::{self, Source};
use crate::cli::model::Chosen;
use crate::models::zoo::Zoo;
use crate::{AdamW, Optimizer, Pipeline};

/// A run with everything decided.
#[derive(Debug)]
pub(super) struct Job {
    /// With what the plan says in place of the flags for it.
    pub(super) args: Args,
    pub(super) chosen: Chosen,
    pub(super) source: Source,
    pub(super) plan: Option<Plan>,
    /// Tokens of a sample, where it is a sequence of them.
    pub(super) tokens: Option<usize>,
}

impl Job {
    /// Checks everything that can be checked before anything is built.
    pub(super) fn new(args: &Args, zoo: &Zoo) -> Result<Self, Failure> {
        let chosen = Chosen::new(zoo, &args.model, &args.sizes)?;
        let plan = args.plan.as_deref().map(planned::read).transpose()?;
        let args = match &plan {
            Some(plan) => planned::applied(args, plan, &chosen)?,
            None => args.clone(),
        };
        check::check(&args, &chosen)?;
        feed::check_batch(&chosen.spec, args.batch).map_err(Failure::Usage)?;
        let (chosen, source) = Source::choose(chosen, args.data.as_deref())?;
        Ok(Self {
            tokens: feed::tokens(&chosen.spec),
            args,
            chosen,
            source,
            plan,
        })
    }

    /// The model as a pipeline.
    pub(super) fn pipeline(&self) -> Result<Pipeline, Failure> {
        let args = &self.args;
        let mut builder = Pipeline::builder(self.chosen.spec.build())
            .devices(&args.devices)
            .micro_batches(args.micro)
            .schedule(args.schedule)
            .measure_memory(true)
            .chunks(args.chunks())
            .recompute(args.recompute.clone())
            .seed(args.seed);
        if let Some(balance) = &args.balance {
            builder = builder.balance(balance);
        }
        if let Some(plan) = &self.plan {
            builder = builder.plan(plan).map_err(failure)?;
        }
        if let Some(threads) = args.threads_per_stage {
            builder = builder.threads_per_stage(threads);
        }
        builder.build().map_err(failure)
    }

    pub(super) fn optimizer(&self) -> Optimizer {
        Optimizer::new(AdamW {
            lr: self.args.lr,
            ..AdamW::default()
        })
    }
}
