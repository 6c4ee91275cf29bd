//! The models that can be named, with inputs to measure them on.

use tch::{Device, Kind, Tensor};

use super::options::Args;
use crate::cli::Failure;
use crate::data::{MOBY_DICK, TextSet};
use crate::models::{Gpt, Mlp, gpt, mlp};
use crate::{Sample, Sequential};

/// The most values of a sample: gigabytes of inputs alone are a slip.
const MAX_VALUES: usize = 1 << 28;
/// Larger sizes fit no machine, and libtorch says so less well.
const MAX_WIDTH: usize = 1 << 20;

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    Gpt,
    Mlp,
}

pub(super) fn name(text: &str) -> Result<Model, String> {
    match text.trim() {
        "gpt" => Ok(Model::Gpt),
        "mlp" => Ok(Model::Mlp),
        other => Err(format!(
            "there is no model `{other}`: models are `gpt` and `mlp`"
        )),
    }
}

impl Model {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Mlp => "mlp",
        }
    }
}

pub(super) fn check(args: &Args) -> Result<(), Failure> {
    let wrong = |rule: String| Err(Failure::Usage(rule));
    let widths = [
        ("--d-model", args.d_model),
        ("--seq", args.seq),
        ("--layers", args.layers),
        ("--vocab", args.vocab.unwrap_or(1)),
        ("--inputs", args.inputs),
        ("--hidden", args.hidden),
        ("--depth", args.depth),
        ("--outputs", args.outputs),
    ];
    if let Some((flag, width)) = widths.into_iter().find(|(_, width)| *width > MAX_WIDTH) {
        return wrong(format!("{flag} {width}: must be at most {MAX_WIDTH}"));
    }
    if args.model == Model::Gpt && !args.d_model.is_multiple_of(args.heads) {
        return wrong(format!(
            "--d-model {} is not a multiple of --heads {}: heads share the features evenly",
            args.d_model, args.heads
        ));
    }
    let (flag, width) = match args.model {
        Model::Gpt => ("--seq", args.seq),
        Model::Mlp => ("--inputs", args.inputs),
    };
    if args.batch.saturating_mul(width) > MAX_VALUES {
        return wrong(format!(
            "--batch {} times {flag} {width} is more than {MAX_VALUES} values",
            args.batch
        ));
    }
    let (layers, stages) = (layers(args), args.devices.len() * args.chunks.unwrap_or(1));
    if stages > layers {
        return wrong(format!(
            "{stages} stages, but the model has only {layers} layers: use fewer --devices or \
             --chunks, or more layers"
        ));
    }
    Ok(())
}

fn layers(args: &Args) -> usize {
    match args.model {
        Model::Gpt => args.layers + 2,
        Model::Mlp => args.depth + 1,
    }
}

/// The model, and a micro-batch of `samples` for it: the same every time, without
/// anybody's random numbers.
pub(super) fn build(args: &Args, samples: usize) -> Result<(Sequential, Sample), Failure> {
    let rows = samples as i64;
    let counting = |width: usize, modulus: i64| -> Result<Tensor, tch::TchError> {
        let size = rows * width as i64;
        let places = Tensor::f_arange(size, (Kind::Int64, Device::Cpu))?;
        // Neighbours differ, and rows do: a prime step.
        places
            .f_multiply_scalar(7919)?
            .f_remainder(modulus)?
            .f_view([rows, width as i64])
    };
    match args.model {
        Model::Gpt => {
            let text = || TextSet::new(MOBY_DICK).vocabulary().len();
            let vocab = args.vocab.unwrap_or_else(text) as i64;
            let model = gpt(Gpt {
                vocab,
                context: args.seq as i64,
                d_model: args.d_model as i64,
                heads: args.heads as i64,
                blocks: args.layers,
                dropout: 0.0,
            });
            let tokens = counting(args.seq, vocab)?;
            let next = counting(args.seq, vocab)?;
            let loss = crate::cli::train::next_token_loss;
            Ok((model, Sample::new(tokens).with_loss(next, loss)))
        }
        Model::Mlp => {
            let model = mlp(Mlp {
                inputs: args.inputs as i64,
                hidden: args.hidden as i64,
                depth: args.depth,
                outputs: args.outputs as i64,
            });
            let inputs = counting(args.inputs, 1009)?.f_to_kind(Kind::Float)? / 504.0 - 1.0;
            let classes = counting(1, args.outputs as i64)?.f_view([-1])?;
            let loss = |out: &Tensor, y: &Tensor| {
                let mean = tch::Reduction::Mean;
                out.f_cross_entropy_loss(y, None::<Tensor>, mean, -100, 0.0)
            };
            Ok((model, Sample::new(inputs).with_loss(classes, loss)))
        }
    }
}
