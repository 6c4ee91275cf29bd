//! Data that the processes of a pipeline exchange at the end of a step.

use gpipe_partitioner::{Action, ActionKind, DeviceId, MicroId, Micros, Span, StageId, Timeline};

use super::losses::Parts;
use super::stages::{Ended, Stages};
use crate::error::Error;
use crate::{Reduction, TorchError};

/// One process's data of a step.
///
/// It travels with the vote of each step as plain little-endian numbers; floating-point numbers are
/// written as their bits:
///
/// | bytes | what |
/// |---|---|
/// | 8, 8 | number of losses, number of actions |
/// | 8 | the host's share; NaN if there is none |
/// | 8, 8, 8, 8 per loss | micro-batch, value, reduction, weight |
/// | 8, 8, 8, 8, 8, 8 per action | device, kind, stage, micro-batch, begin and end in seconds of rank 0's clock |
#[derive(Debug, Default, PartialEq)]
struct Closing {
    /// Losses of micro-batches, by number, whose copy of the last stage is in this process.
    losses: Vec<(usize, f64, Reduction)>,
    actions: Vec<Ran>,
    host_share: Option<f64>,
}

/// An action: its device, and its begin and end in seconds of rank 0's clock.
#[derive(Debug, PartialEq)]
struct Ran {
    device: usize,
    action: Action,
    start: f64,
    end: f64,
}

/// Action kinds by their number in the message.
const KINDS: [ActionKind; 5] = [
    ActionKind::Forward,
    ActionKind::Backward,
    ActionKind::BackwardInput,
    ActionKind::BackwardWeight,
    ActionKind::Recompute,
];

/// A step as known to all processes.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) losses: Parts,
    pub(super) timeline: Timeline,
    pub(super) host_share: Option<f64>,
}

/// Encodes this process's part of a step that has ended here: the losses of some micro-batches, by
/// number, if the last stage is here. Waits until the devices are done with the step.
pub(super) fn told(
    stages: &Stages,
    ended: Ended<'_>,
    (micros, (values, reductions)): (Vec<usize>, Parts),
) -> Result<Vec<u8>, Error> {
    let losses = micros.into_iter().zip(values).zip(reductions);
    let losses = losses.map(|((micro, value), sort)| (micro, value, sort));
    let epoch = stages.clock_seconds(ended.epoch);
    let (spans, host_share) = match ended.times {
        Some(times) => times.read_spans()?,
        None => (stages.spans(&ended.outcome.events), None),
    };
    let at = |since: Micros| epoch + since.get() / 1e6;
    let ran = |span: Span| Ran {
        device: span.device.index(),
        action: span.action,
        start: at(span.start),
        end: at(span.end),
    };
    let own = Closing {
        losses: losses.collect(),
        actions: spans.into_iter().map(ran).collect(),
        host_share,
    };
    Ok(own.write())
}

impl Closed {
    /// Combines the parts of all processes.
    pub(super) fn of(told: &[Vec<u8>], devices: usize) -> Result<Self, Error> {
        let all = told.iter().map(|told| Closing::read(told));
        let all: Option<Vec<Closing>> = all.collect();
        let all = all.ok_or_else(|| TorchError::new("what processes tell of a step is cut off"))?;
        let mut losses: Vec<_> = all.iter().flat_map(|own| own.losses.clone()).collect();
        losses.sort_by_key(|(micro, ..)| *micro);
        let spans = all.iter().flat_map(|own| &own.actions).map(Ran::span);
        let shares = all.iter().filter_map(|own| own.host_share);
        Ok(Self {
            losses: losses
                .iter()
                .map(|(_, value, sort)| (*value, *sort))
                .unzip(),
            timeline: Timeline::new(devices, spans.collect()),
            host_share: shares.reduce(f64::max),
        })
    }
}

impl Closing {
    fn write(&self) -> Vec<u8> {
        let mut words = vec![self.losses.len() as u64, self.actions.len() as u64];
        words.push(self.host_share.unwrap_or(f64::NAN).to_bits());
        for (micro, value, reduction) in &self.losses {
            let (sort, weight) = match reduction {
                Reduction::Mean => (0, 0.0),
                Reduction::Sum => (1, 0.0),
                Reduction::Weighted(weight) => (2, *weight),
            };
            words.extend([*micro as u64, value.to_bits(), sort, weight.to_bits()]);
        }
        for own in &self.actions {
            let Action { kind, stage, micro } = own.action;
            let kind = KINDS.iter().position(|other| *other == kind);
            words.extend([
                own.device as u64,
                kind.unwrap_or(KINDS.len()) as u64,
                stage.index() as u64,
                micro.index() as u64,
                own.start.to_bits(),
                own.end.to_bits(),
            ]);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a message; `None` if it is malformed.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let (head, rest) = words.split_first_chunk::<3>()?;
        let [losses, actions, share] = head.map(u64::from_le_bytes);
        let share = f64::from_bits(share);
        let losses = usize::try_from(losses).ok()?.checked_mul(4)?;
        let (losses, rest) = rest.split_at_checked(losses)?;
        let actions = usize::try_from(actions).ok()?.checked_mul(6)?;
        let (actions, []) = rest.split_at_checked(actions)? else {
            return None;
        };
        let losses = losses.as_chunks::<4>().0.iter();
        let actions = actions.as_chunks::<6>().0.iter();
        Some(Self {
            losses: losses.map(read_loss).collect::<Option<_>>()?,
            actions: actions.map(read_action).collect::<Option<_>>()?,
            host_share: (!share.is_nan()).then_some(share),
        })
    }
}

fn read_loss(words: &[[u8; 8]; 4]) -> Option<(usize, f64, Reduction)> {
    let [micro, value, sort, weight] = words.map(u64::from_le_bytes);
    let reduction = match sort {
        0 => Reduction::Mean,
        1 => Reduction::Sum,
        2 => Reduction::Weighted(f64::from_bits(weight)),
        _ => return None,
    };
    Some((
        usize::try_from(micro).ok()?,
        f64::from_bits(value),
        reduction,
    ))
}

fn read_action(words: &[[u8; 8]; 6]) -> Option<Ran> {
    let [device, kind, stage, micro, start, end] = words.map(u64::from_le_bytes);
    let number = |word: u64| usize::try_from(word).ok();
    Some(Ran {
        device: number(device)?,
        action: Action {
            kind: *KINDS.get(number(kind)?)?,
            stage: StageId(number(stage)?),
            micro: MicroId(number(micro)?),
        },
        start: f64::from_bits(start),
        end: f64::from_bits(end),
    })
}

impl Ran {
    fn span(&self) -> Span {
        let micros = |seconds: f64| Micros::new(seconds.max(0.0) * 1e6).unwrap_or_default();
        Span {
            device: DeviceId(self.device),
            action: self.action,
            start: micros(self.start),
            end: micros(self.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_as_it_was_written() {
        let action = |text: &str, device, start| Ran {
            device,
            action: text.parse().unwrap(),
            start,
            end: start + 0.5,
        };
        let own = Closing {
            losses: vec![
                (3, 0.1, Reduction::Mean),
                (5, -0.0, Reduction::Sum),
                (7, f64::INFINITY, Reduction::Weighted(2.5)),
            ],
            actions: ["0F0", "1B2", "3I1", "2W4", "1R0"]
                .iter()
                .zip(0..)
                .map(|(text, device)| action(text, device, 1e-9))
                .collect(),
            host_share: Some(0.25),
        };
        let written = own.write();
        assert_eq!(Closing::read(&written), Some(own));
        assert_eq!(Closing::read(&written[..written.len() - 8]), None);
        assert_eq!(Closing::read(&written[..5]), None);
        let none = Closing::default();
        assert_eq!(Closing::read(&none.write()), Some(none));
        let nan = Closing {
            losses: vec![(0, f64::NAN, Reduction::Mean)],
            ..Closing::default()
        };
        assert!(Closing::read(&nan.write()).unwrap().losses[0].1.is_nan());
    }
}
