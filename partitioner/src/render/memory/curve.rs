//! Memory of one device over a step, and the parts of its peak.

use crate::cost::StageMemory;
use crate::ids::{DeviceId, StageId};
use crate::simulate::{MemoryLevel, Simulation, memory_over};
use crate::units::{Bytes, Micros};

/// The memory of one device over a step.
#[derive(Debug)]
pub(in crate::render) struct Curve {
    pub(in crate::render) device: DeviceId,
    /// Fixed bytes: parameters, and the optimizer's state.
    pub(in crate::render) standing: [Bytes; 2],
    /// Fixed bytes with the gradients of parameters.
    pub(in crate::render) base: Vec<MemoryLevel>,
    /// `base` with activations.
    pub(in crate::render) held: Vec<MemoryLevel>,
    /// `held` with the bytes that actions need only while they run: everything.
    pub(in crate::render) levels: Vec<MemoryLevel>,
    /// The device's memory, if known.
    pub(in crate::render) limit: Option<Bytes>,
    /// Name of the highest level.
    pub(in crate::render) peak_name: &'static str,
    /// Measured amounts, with their names.
    pub(in crate::render) marks: Vec<(&'static str, Bytes)>,
}

/// Parts of a peak.
#[derive(Clone, Copy, Debug)]
pub(in crate::render) struct Parts {
    pub(in crate::render) gradients: Bytes,
    pub(in crate::render) activations: Bytes,
    /// Bytes needed only while an action runs.
    pub(in crate::render) working: Bytes,
}

impl Curve {
    /// Returns the curve of `device` in a simulation.
    pub(in crate::render) fn new(simulation: &Simulation, device: DeviceId) -> Self {
        let stages = simulation.schedule().stages_on(device).into_iter();
        let costs = simulation.costs();
        let standing = stages.fold([Bytes::ZERO; 2], |[parameters, optimizer], stage| {
            let memory = costs.memory(stage);
            [parameters + memory.parameters, optimizer + memory.optimizer]
        });
        let held = |memory| StageMemory {
            working: Bytes::ZERO,
            ..memory
        };
        let base = |memory: StageMemory| StageMemory {
            parameters: memory.parameters,
            gradients: memory.gradients,
            optimizer: memory.optimizer,
            ..StageMemory::default()
        };
        Self {
            device,
            standing,
            base: part(simulation, device, base),
            held: part(simulation, device, held),
            levels: simulation.memory(device),
            limit: None,
            peak_name: "peak",
            marks: Vec::new(),
        }
    }

    /// Returns the fixed bytes.
    pub(super) fn always(&self) -> Bytes {
        self.standing.into_iter().sum()
    }

    /// Returns the first highest level.
    pub(in crate::render) fn peak(&self) -> MemoryLevel {
        let first = MemoryLevel {
            time: Micros::ZERO,
            bytes: Bytes::ZERO,
        };
        let higher = |best: MemoryLevel, level: &MemoryLevel| {
            if level.bytes > best.bytes {
                *level
            } else {
                best
            }
        };
        self.levels.iter().fold(first, higher)
    }

    /// Whether an action needs bytes only while it runs, at the peak or elsewhere.
    pub(super) fn works(&self) -> bool {
        let more = |level: &MemoryLevel| level.bytes > at(&self.held, level.time);
        self.levels.iter().any(more)
    }

    /// Returns the parts of the peak, without the fixed bytes.
    pub(in crate::render) fn parts(&self) -> Parts {
        let MemoryLevel { time, bytes } = self.peak();
        let held = at(&self.held, time).min(bytes);
        let gradients = at(&self.base, time) - self.always();
        Parts {
            gradients,
            activations: held - self.always() - gradients,
            working: bytes - held,
        }
    }
}

/// Returns the levels of `device` with only the part of its stages' memory that `kept` selects.
fn part(
    simulation: &Simulation,
    device: DeviceId,
    kept: impl Fn(StageMemory) -> StageMemory,
) -> Vec<MemoryLevel> {
    let all = simulation.costs();
    let costs = (0..all.stages())
        .map(StageId)
        .fold(all.clone(), |costs, stage| {
            costs.with_memory(stage, kept(all.memory(stage)))
        });
    memory_over(simulation.schedule(), &costs, &simulation.timeline, device)
}

/// Returns the highest level at `time`; without a change at that time, the one before.
fn at(levels: &[MemoryLevel], time: Micros) -> Bytes {
    let before = levels.partition_point(|level| level.time <= time);
    let mut levels = levels[..before].iter().rev();
    let Some(last) = levels.next() else {
        return Bytes::ZERO;
    };
    if last.time < time {
        return last.bytes;
    }
    let same = levels.take_while(|level| level.time == time);
    same.fold(last.bytes, |most, level| most.max(level.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::Costs;
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use proptest::prelude::*;

    proptest! {
        /// The curve ends at the simulation's peak, and the parts add up to it.
        #[test]
        fn the_curve_of_a_device_peaks_at_the_simulations_peak(
            devices in 1_usize..4,
            micro in 1_usize..6,
            kind in 0..ScheduleKind::ALL.len(),
            amounts in prop::collection::vec(0_u64..100, 8),
        ) {
            let kind = ScheduleKind::ALL[kind];
            let shape = Shape::new(devices, micro).with_chunks(kind.default_chunks());
            let Ok(schedule) = kind.generate(shape) else {
                return Ok(());
            };
            let unit = Micros::new(10.0).unwrap();
            let memory = |stage: u64| StageMemory {
                parameters: Bytes(amounts[0]),
                gradients: Bytes(amounts[1]),
                optimizer: Bytes(amounts[2]),
                graphs: Bytes(amounts[7]),
                activation: Bytes(amounts[3] + stage),
                offloaded: Bytes(amounts[3] / 2),
                recomputed: Bytes(amounts[4]),
                recomputable: Bytes::ZERO,
                offloadable: Bytes::ZERO,
                kept_for_weight: None,
                sent: Bytes(amounts[5]),
                working: Bytes(amounts[6]),
            };
            let costs = Costs::uniform(shape.stages(), unit, unit, unit);
            let costs = (0..shape.stages())
                .fold(costs, |costs, s| costs.with_memory(StageId(s), memory(s as u64)));
            let simulation = simulate(&schedule, &costs);
            for (device, peak) in simulation.peak_bytes().into_iter().enumerate() {
                let curve = Curve::new(&simulation, DeviceId(device));
                prop_assert_eq!(curve.peak().bytes, peak);
                let Parts { gradients, activations, working } = curve.parts();
                prop_assert_eq!(curve.always() + gradients + activations + working, peak);
                prop_assert!(working <= Bytes(amounts[6]));
                prop_assert!(working == Bytes::ZERO || curve.works());
                prop_assert!(amounts[6] > 0 || !curve.works());
                for levels in [&curve.base, &curve.held] {
                    prop_assert!(levels.iter().all(|level| level.bytes <= peak));
                }
            }
        }
    }
    /// Regression: the legend left out `working` bytes unless the peak has some.
    #[test]
    fn what_is_drawn_is_named() {
        let levels = |levels: &[(f64, u64)]| -> Vec<MemoryLevel> {
            let level = |&(time, bytes): &(f64, u64)| MemoryLevel {
                time: Micros::saturating(time),
                bytes: Bytes(bytes),
            };
            levels.iter().map(level).collect()
        };
        let curve = Curve {
            device: DeviceId(0),
            standing: [Bytes::ZERO; 2],
            base: Vec::new(),
            held: levels(&[(0.0, 10), (1.0, 90), (2.0, 0)]),
            levels: levels(&[(0.0, 30), (1.0, 90), (2.0, 0)]),
            limit: None,
            peak_name: "peak",
            marks: vec![("measured held", Bytes(1)), ("measured peak", Bytes(80))],
        };
        assert_eq!((curve.parts().working, curve.works()), (Bytes::ZERO, true));
        let svg = crate::render::memory::picture(&[curve], Micros::saturating(2.0));
        assert!(svg.contains(">needed while an action runs</li>"), "{svg}");
        // Regression: names at the lines were written across low curves.
        for (class, name, bytes) in [("mark", "held", "1 B"), ("mark dash", "peak", "80 B")] {
            let key = format!("<path class=\"{class}\" d=\"M0 7H26\"/></svg>measured {name}</li>");
            assert!(svg.contains(&key), "{key} {svg}");
            assert!(svg.contains(&format!("<path class=\"{class}\" d=\"M70 ")));
            assert_eq!(svg.matches(&format!("measured {name} {bytes}")).count(), 2);
        }
    }
}
