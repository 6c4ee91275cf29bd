//! Layers that are alike, such as the blocks of a transformer, of which one is measured.
//!
//! Nothing tells whether two layers compute the same. Where the names, shapes and kinds
//! of their parameters and buffers are the same, those of what goes in and comes out, and
//! a forward takes about as long, they are taken to cost the same.

use super::chain::{Chain, Way};
use super::flow::Flow;
use super::measurements::Measurements;
use crate::error::Error;
use crate::torch::Values;

/// By what factor forwards of like layers may differ.
const AS_LONG: f64 = 2.0;
/// So often a layer is tried: the first run does what later ones do not.
const TRIES: usize = 2;

/// Shape, kind, and whether it wants a gradient.
type Look = (Vec<i64>, tch::Kind, bool);

/// What can be seen of a layer without running it.
#[derive(Debug, PartialEq)]
pub(super) struct Looks {
    /// By their names within the layer.
    variables: Vec<(String, Look)>,
    /// For each size of micro-batches.
    inputs: Vec<Vec<Option<Look>>>,
}

/// A layer that was measured.
#[derive(Debug)]
pub(super) struct Known {
    looks: Looks,
    tried: Tried,
    /// Its place among the measured.
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
    /// Those of a chain of one layer; `None` where they say too little: a layer without
    /// parameters may be anything, and one with skips or a loss does more than is seen.
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

    /// The layer, once it is measured; `flows` are what entered it.
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

/// What comes out of a layer for each size, and how long its thread worked for all.
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

/// Runs a layer forward, with what comes out of it.
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

/// Takes a layer for one that was measured before, if it is like one; `flows` are then
/// what leaves it.
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
