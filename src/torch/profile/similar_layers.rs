//! Detection of similar layers, such as the blocks of a transformer, of which only one is measured.
//!
//! Whether two layers compute the same cannot be known. They are assumed to cost the same if the
//! names, shapes and kinds of their parameters and buffers match, the shapes and kinds of their
//! inputs and outputs match, and a forward takes about as long.

use super::chain::{Chain, Way};
use super::flow::Flow;
use super::measurements::Measurements;
use crate::Values;
use crate::error::Error;

/// Largest factor between the forward times of similar layers.
const AS_LONG: f64 = 2.0;
/// Trial runs of a layer; the first run does one-time work.
const TRIES: usize = 2;

/// Shape, kind, and whether it wants a gradient.
type Look = (Vec<i64>, tch::Kind, bool);

/// Properties of a layer that are visible without running it.
#[derive(Debug, PartialEq)]
pub(super) struct Looks {
    /// Parameters and buffers by name within the layer.
    variables: Vec<(String, Look)>,
    /// Inputs for each micro-batch size.
    inputs: Vec<Vec<Option<Look>>>,
}

/// A layer that was measured.
#[derive(Debug)]
pub(super) struct Known {
    looks: Looks,
    tried: Tried,
    /// Index of the measured layer.
    layer: usize,
}

fn look(tensor: &tch::Tensor) -> Look {
    (tensor.size(), tensor.kind(), tensor.requires_grad())
}

fn of_values(values: &Values) -> Vec<Option<Look>> {
    values.iter().map(|value| value.map(look)).collect()
}

fn of_flows(flows: &[Flow]) -> Vec<Vec<Option<Look>>> {
    flows.iter().map(|flow| of_values(&flow.main)).collect()
}

impl Looks {
    /// Describes a chain of one layer; `None` if that is not enough: a layer without parameters may
    /// compute anything, and one with skips or a loss does more than its variables show.
    pub(super) fn of(chain: &mut Chain, flows: &[Flow]) -> Result<Option<Self>, Error> {
        let [unit] = &mut chain.units[..] else {
            return Ok(None);
        };
        let (incoming, outgoing) = unit.stage.skip_ends();
        if unit.stage.has_loss() || !incoming.is_empty() || !outgoing.is_empty() {
            return Ok(None);
        }
        let own = |name: &str| {
            let own = name.strip_prefix(unit.name.as_str());
            own.unwrap_or(name).to_owned()
        };
        let mut variables = Vec::new();
        let parameters = unit.stage.committed().map_err(Error::Build)?.parameters();
        variables.extend(parameters.iter().map(|(name, p)| (own(name), look(p))));
        if variables.is_empty() {
            return Ok(None);
        }
        let buffers = unit.stage.buffers().map_err(Error::Build)?;
        variables.extend(buffers.iter().map(|(name, b)| (own(name), look(b))));
        Ok(Some(Self {
            variables,
            inputs: of_flows(flows),
        }))
    }

    /// Completes the description after the layer was measured; `flows` are its inputs.
    pub(super) fn known(
        self,
        chain: &mut Chain,
        flows: &[Flow],
        layer: usize,
    ) -> Result<Known, Error> {
        let (_, tried) = try_out(chain, flows)?;
        Ok(Known {
            looks: self,
            tried,
            layer,
        })
    }
}

/// Outputs of a layer for each size, and its thread's total working time.
#[derive(Debug)]
struct Tried {
    outputs: Vec<Vec<Option<Look>>>,
    busy: f64,
}

impl Tried {
    fn is_like(&self, other: &Self) -> bool {
        let factor = self.busy / other.busy;
        self.outputs == other.outputs && (1.0 / AS_LONG..=AS_LONG).contains(&factor)
    }
}

/// Runs a layer forward and returns its outputs.
fn try_out(chain: &mut Chain, flows: &[Flow]) -> Result<(Vec<Flow>, Tried), Error> {
    let (mut outs, mut busy) = (Vec::new(), 0.0);
    for flow in flows {
        chain.begin(Way::Joint, flow)?;
        let out = chain.forward(0, flow, &mut |_, _, took| busy += took.busy);
        chain.abort();
        outs.push(out?);
    }
    let outputs = of_flows(&outs);
    Ok((outs, Tried { outputs, busy }))
}

/// Reuses the measurements of a similar layer, if there is one; `flows` then become this layer's
/// outputs.
pub(super) fn taken_for_known(
    looks: &Looks,
    known: &[Known],
    chain: &mut Chain,
    flows: &mut [Flow],
    outcome: &mut Measurements,
) -> Result<bool, Error> {
    let alike: Vec<&Known> = known.iter().filter(|k| k.looks == *looks).collect();
    if alike.is_empty() {
        return Ok(false);
    }
    for _ in 0..TRIES {
        let (outs, tried) = try_out(chain, flows)?;
        if let Some(like) = alike.iter().find(|known| tried.is_like(&known.tried)) {
            outcome.repeat(like.layer);
            for (flow, out) in flows.iter_mut().zip(outs) {
                flow.pass_on(out);
            }
            return Ok(true);
        }
    }
    Ok(false)
}
