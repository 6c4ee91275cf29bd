//! What is trained: the flags, the model and the data that they name.

use gpipe_partitioner::Plan;
use tch::Device;

use super::options::Args;
use super::{check, failure, planned};
use crate::cli::feed::{self, Source};
use crate::cli::model::Chosen;
use crate::cli::{Failure, room};
use crate::models::zoo::Zoo;
use crate::{AdamW, Optimizer, Pipeline};

/// Parameters, their gradients, and two numbers of the optimizer for each.
const COPIES: u64 = 4;

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
        check_memory(&args, &chosen)?;
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

/// The CPU can hold the model where no other device takes a part of it.
fn check_memory(args: &Args, chosen: &Chosen) -> Result<(), Failure> {
    if args.devices.iter().any(|device| *device != Device::Cpu) {
        return Ok(());
    }
    let layers = chosen.spec.build().parameter_bytes()?;
    let needs = layers.iter().sum::<u64>().saturating_mul(COPIES);
    let name = chosen.spec.name();
    let what = format!("parameters, gradients and the optimizer of `{name}`");
    room::check(
        &what,
        needs,
        "take smaller sizes, or devices of their own memory",
    )
    .map_err(Failure::Usage)
}
