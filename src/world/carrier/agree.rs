//! The vote of processes that have all done their part.

use super::super::{Group, Lost};
use crate::tch::{Device, Kind, Tensor};

/// Tags of votes, above all those of values.
const UP: u32 = i32::MAX as u32;
const DOWN: u32 = UP - 1;

/// Comes to its end in all processes if all come here, along a binary tree: up to rank 0, and
/// down again.
///
/// *Complexity*: 2 log2(size) messages one after another.
pub(super) fn agree(group: &Group, rank: usize, size: usize) -> Result<(), Lost> {
    let word = Tensor::zeros([1], (Kind::Uint8, Device::Cpu));
    let receive = |from, tag| group.receive(&[1], Kind::Uint8, from, tag);
    let children = [2 * rank + 1, 2 * rank + 2];
    let children = || children.into_iter().filter(|child| *child < size);
    let up: Vec<_> = children()
        .map(|child| receive(child, UP))
        .collect::<Result<_, _>>()?;
    let parent = rank.checked_sub(1).map(|before| before / 2);
    let down = parent.map(|parent| receive(parent, DOWN)).transpose()?;
    for transfer in up {
        let _ = transfer.wait()?;
    }
    let sent = parent
        .map(|parent| group.send(&word, parent, UP))
        .transpose()?;
    for transfer in sent.into_iter().chain(down) {
        let _ = transfer.wait()?;
    }
    let sent = children().map(|child| group.send(&word, child, DOWN));
    for transfer in sent.collect::<Result<Vec<_>, _>>()? {
        let _ = transfer.wait()?;
    }
    Ok(())
}
