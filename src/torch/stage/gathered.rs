//! State gathered by layers over a step, in transit between replicas; and state that replicas
//! cannot share.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use gpipe_partitioner::MicroId;

use super::accumulator::Accumulator;
use super::buffers::Buffers;
use super::compute::Compute;
use crate::step_state::GatheredParts;
use crate::values::Values;

/// Header of one layer's gathered state, before its tensors.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Number of the layer on the stage.
    layer: usize,
    name: String,
    /// Number and tensor count of each micro-batch.
    parts: Vec<(usize, usize)>,
}

/// State gathered by this copy's layers.
#[derive(Debug)]
pub(super) struct Own(Vec<(usize, GatheredParts)>);

impl Own {
    /// Takes it out of the layers, if it is `wanted` elsewhere.
    ///
    /// # Errors
    /// A layer's state cannot be shared.
    pub(super) fn take(compute: &mut Compute, wanted: bool) -> anyhow::Result<Self> {
        let layers = compute.layers();
        let parts = layers.gathered()?;
        if !wanted {
            return Ok(Self(Vec::new()));
        }
        layers.undo();
        Ok(Self(parts))
    }

    /// Appends it: first a description, as bytes, then the tensors. Nothing, where no layer has
    /// gathered anything.
    pub(super) fn append_to(&self, values: &mut Values) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let header = |(layer, own): &(usize, GatheredParts)| Header {
            layer: *layer,
            name: own.name.clone(),
            parts: (own.parts.iter())
                .map(|(micro, values)| (micro.index(), values.len()))
                .collect(),
        };
        let headers: Vec<Header> = self.0.iter().map(header).collect();
        let text = serde_json::to_vec(&headers)?;
        values.push(Some(Tensor::f_from_slice(&text)?));
        let parts = self.0.iter().flat_map(|(_, own)| &own.parts);
        for tensor in parts.flat_map(|(_, values)| values.iter()) {
            values.push(tensor.map(Tensor::shallow_clone));
        }
        Ok(())
    }
}

/// Decodes the state appended by a copy.
fn read(appended: Vec<Option<Tensor>>) -> anyhow::Result<Vec<(usize, GatheredParts)>> {
    let mut tensors = appended.into_iter();
    let Some(text) = tensors.next().flatten() else {
        return Ok(Vec::new());
    };
    let text: Vec<u8> = Vec::try_from(text.f_to_device(Device::Cpu)?)?;
    let headers: Vec<Header> = serde_json::from_slice(&text)?;
    let mut parts = |own: Vec<(usize, usize)>| -> Vec<(MicroId, Values)> {
        let part = |(micro, count)| (MicroId(micro), tensors.by_ref().take(count).collect());
        own.into_iter().map(part).collect()
    };
    let own = |Header {
                   layer,
                   name,
                   parts: own,
               }: Header| {
        let parts = parts(own);
        (layer, GatheredParts { name, parts })
    };
    Ok(headers.into_iter().map(own).collect())
}

/// Commits the state gathered by the layers of all copies (`appended` is that of the others), and
/// restores the stage's buffers. *Returns* the resulting buffer values, one entry per buffer,
/// absent if unchanged; empty if no layer gathered anything. The same values count here if the step
/// does.
///
/// # Errors
/// A layer's own error; state of a layer that has gathered nothing here.
pub(super) fn commit_on_trial(
    compute: &mut Compute,
    appended: Vec<Vec<Option<Tensor>>>,
) -> anyhow::Result<Values> {
    for part in appended {
        for (layer, own) in read(part)? {
            compute.layers().merge(layer, own)?;
        }
    }
    if !compute.layers().have_gathered() {
        return Ok(Values::new());
    }
    let (layers, buffers) = compute.layers_and_buffers();
    let all = 0..layers.len();
    let before = buffers.copies(&all)?;
    let done = layers.commit();
    let changed = Buffers::changed_since(&before);
    super::buffers::restore(&before)?;
    done?;
    let changed: Vec<_> = changed?;
    let handle = |value: &Option<Tensor>| value.as_ref().map(Tensor::shallow_clone);
    let given = changed.iter().map(handle).collect();
    buffers.set_pending(changed)?;
    Ok(given)
}

/// Refuses a step in which a layer has moved one of its buffers, micro-batch after micro-batch:
/// no copy has seen the micro-batches of the others. On an accelerator, where the host would
/// wait, the values are compared in the first step alone; in the others only writes are counted.
pub(super) fn check_buffers(compute: &mut Compute, looked: &mut bool) -> anyhow::Result<()> {
    let values = compute.layers().device() == Device::Cpu || !*looked;
    let moved = compute.buffers().moved_in_step(values)?;
    *looked |= values;
    let Some((layer, name)) = moved else {
        return Ok(());
    };
    compute.layers().progress().layer(layer);
    anyhow::bail!(
        "the forward moves the buffer `{name}` in every micro-batch, which replicas, that have only \
         some of the micro-batches each, cannot do to the same numbers: train it without replicas, \
         or gather what is to move the buffer over the step (`Context::gathers`), as \
         `layers::BatchNorm` does in place of `nn::BatchNorm`"
    )
}

/// Refuses a step in which a layer has written to one of its parameters.
pub(super) fn check_parameters(
    compute: &Compute,
    accumulator: &Accumulator,
    began: &[i64],
) -> anyhow::Result<()> {
    let now = accumulator.changes()?;
    let Some(place) = now.iter().zip(began).position(|(now, began)| now != began) else {
        return Ok(());
    };
    let name = accumulator.name(place);
    if let Some(layer) = compute.layers().owner(name) {
        compute.layers().progress().layer(layer);
    }
    anyhow::bail!(
        "the forward writes to the parameter `{name}`, which replicas, that have only some of the \
         micro-batches each, cannot do to the same numbers: train it without replicas, or compute \
         what is used from the parameter and leave that as it is"
    )
}
