//! Flags that describe a model by its shape, and notes on a plan for it.

use gpipe_partitioner::analytic::Efficiency;
use gpipe_partitioner::words::count;
use gpipe_partitioner::{
    Bytes, Cluster, ClusterOptions, Micros, Plan, PlanError, Profile, Transformer,
    TransformerOptions, TransformerPlan, plan_transformer,
};

use super::{Args, Planned, cluster, failure, with_reserve};
use crate::names::heading::{MACHINES, MODEL};
use crate::titled_lines::Said;
use crate::{Failure, input};

/// A transformer whose costs are computed, and how it is divided within nodes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct ShapeFlags {
    /// Transformer to plan for instead of a profile; its layers' costs are computed for the cards of
    /// --cluster. A name (gpt2, gpt2-medium, gpt2-large,
    /// gpt2-xl, gpt3-175b, llama2-7b, llama2-13b, llama2-70b, llama3-8b, llama3-70b, mistral-7b,
    /// tinyllama), sizes
    /// (layers=96,hidden=12288,heads=96,sequence=2048,vocabulary=51200, and where they differ from a GPT's
    /// kv-heads, feed-forward, family=gpt|llama and attention=flash|stored), or a name and sizes
    /// that change it.
    #[arg(
        long, help_heading = MODEL, value_name = "SHAPE", requires = "cluster", conflicts_with = "profile",
        value_parser = input::transformer
    )]
    model_shape: Option<Transformer>,
    /// Cards of a node that share every layer of a --model-shape, or auto. They count as one larger and
    /// faster device whose all-reduces are priced; auto chooses. Replicas and --pipeline then count such
    /// groups. `train` has no such groups: plans with them are for frameworks that have.
    // The type is named in full because clap takes a plain Option for an optional flag.
    #[arg(
        long, value_name = "T", default_value = "1", allow_negative_numbers = true,
        requires = "model_shape", conflicts_with = "profile", value_parser = input::count_or_auto
    )]
    tensor_parallel: std::option::Option<usize>,
    /// Each card of --tensor-parallel keeps whole norms and dropouts. Instead of dividing these, and
    /// their activations, by the sequence.
    #[arg(
        long,
        hide_short_help = true,
        requires = "model_shape",
        conflicts_with = "profile"
    )]
    no_sequence_parallel: bool,
    /// Bytes of optimizer state for each parameter of a --model-shape. Beside 4 for itself and its
    /// gradient: 12 for Adam in mixed precision (two moments and the parameter in 32 bits each), 4
    /// for moments in 16 bits alone, 2 for moments in 8 bits alone, 0 for plain SGD.
    #[arg(
        long, hide_short_help = true, value_name = "BYTES", default_value_t = 12, allow_negative_numbers = true,
        requires = "model_shape", conflicts_with = "profile",
        value_parser = clap::value_parser!(u8).range(0..=64)
    )]
    optimizer_bytes: u8,
    /// Tokens that a --model-shape is to be trained on, such as 300B or 1.5T: says how long that takes.
    #[arg(
        long, help_heading = MODEL, value_name = "N", allow_negative_numbers = true, requires = "model_shape",
        conflicts_with = "profile", value_parser = input::tokens
    )]
    tokens: Option<f64>,
}

impl ShapeFlags {
    /// Whether a shape is given.
    pub(super) fn is_given(&self) -> bool {
        self.model_shape.is_some()
    }

    /// Tokens of a sample, if a shape is given.
    pub(super) fn sequence(&self) -> Option<usize> {
        self.model_shape.as_ref().map(|model| model.sequence)
    }

    /// Tokens to train on.
    pub(super) fn tokens(&self) -> Option<f64> {
        self.tokens
    }

    /// Name of the model.
    pub(super) fn name(&self) -> String {
        let given = self.model_shape.as_ref();
        given.map_or_else(String::new, |model| model.name.clone())
    }
}

/// Plans for the given shape. Without a --batch there are four samples for each card.
pub(super) fn planned(
    args: &Args,
    (cluster, reserve): (Cluster, Bytes),
) -> Result<Planned, Failure> {
    // Called only if a shape is given.
    let Some(model) = &args.shape.model_shape else {
        return Err(Failure::Usage("--model-shape is missing".to_owned()));
    };
    let batch = args.batch.unwrap_or(4 * cluster.cards());
    let cards = cluster.cards();
    let mut options = TransformerOptions::new(cluster, batch);
    cluster::fix(args, &mut options.cluster);
    options.tensor_parallel = args.shape.tensor_parallel;
    // Per byte of a parameter of two bytes.
    options.cluster.optimizer_state = f64::from(args.shape.optimizer_bytes) / 2.0;
    options.sequence_parallel = !args.shape.no_sequence_parallel;
    let chosen = plan_transformer(model, &options);
    let chosen = chosen.map_err(|error| match (&error, args.shape.tensor_parallel) {
        (PlanError::Shortage { .. }, Some(1)) => failure(error).with(
            "; --tensor-parallel auto looks at groups of cards that share layers, too, for \
             frameworks that have them",
        ),
        _ => failure(error),
    });
    let chosen = chosen.map_err(|error| with_reserve(error, reserve))?;
    let said = said(model, &chosen, cards);
    let assumed = assumed(&chosen.profile, &chosen.asked);
    let TransformerPlan {
        profile,
        asked,
        plan,
        options,
        ..
    } = chosen;
    Ok(Planned {
        profile,
        plan,
        options,
        asked: Some(asked),
        reserve,
        said,
        assumed: Some(Said::new("assumed", assumed)),
    })
}

fn said(model: &Transformer, chosen: &TransformerPlan, cards: usize) -> Vec<Said> {
    let plan = &chosen.plan;
    let share = chosen.utilization(model).unwrap_or_default();
    let work = format!(
        "{} has {:.1} billion parameters; {:.1} % of the peak of {} (model FLOPs, recompute not counted)",
        model.name,
        model.parameters() as f64 / 1e9,
        100.0 * share,
        count(cards, "card"),
    );
    let mut said = vec![
        Said::new("model", work),
        Said::new("groups", groups(plan, &chosen.others)),
    ];
    if plan.tensor_parallel > 1 {
        said.push(Said::new(
            "train",
            "`train` has no tensor parallelism and refuses this plan: it is for those who have it \
             elsewhere; without --tensor-parallel the plan is one that it takes",
        ));
    }
    said.retain(Said::is_something);
    said
}

/// Returns the step times with other group sizes.
fn groups(plan: &Plan, others: &[(usize, Option<Micros>)]) -> String {
    if others.is_empty() && plan.tensor_parallel > 1 {
        return String::new();
    }
    if others.is_empty() {
        return "no tensor parallelism, as `train` has none; --tensor-parallel auto plans for frameworks \
                that have it, such as Megatron"
            .to_owned();
    }
    let own = match plan.tensor_parallel {
        1 => "no layer is shared among cards".to_owned(),
        cards => format!("each layer is shared among {cards} cards"),
    };
    let others = others.iter().map(|(cards, step)| {
        let among = match cards {
            1 => "on one card each".to_owned(),
            cards => format!("among {cards}"),
        };
        match step {
            Some(step) => {
                let slower = 100.0 * (step.get() / plan.step.get() - 1.0);
                format!("{among} a step takes {step}, {slower:.1} % more")
            }
            None => format!("{among} nothing fits"),
        }
    });
    let others: Vec<String> = others.collect();
    format!("{own}; {}", others.join("; "))
}

/// Returns the assumptions behind the computed costs.
fn assumed(profile: &Profile, asked: &ClusterOptions) -> String {
    let Efficiency {
        most,
        half,
        moved_forward,
        moved_backward,
        link,
    } = Efficiency::STATED;
    let each = 2.0 * (2.0 + asked.optimizer_state);
    format!(
        "{}, at {most} x / (x + {half}) of the peak for products of smallest dimension x, \
         {moved_forward} bytes moved for each that is stored ({moved_backward} in the backward), \
         all-reduces within groups at {link} of the link, and {each} bytes a parameter for weights, \
         gradients and optimizer",
        profile.measured().unwrap_or_default(),
    )
}
