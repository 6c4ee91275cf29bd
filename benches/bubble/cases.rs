//! Schedules, shapes and times of the cases, and their closed forms.

use gpipe_partitioner::{ActionKind, Costs, Micros, ScheduleKind, Shape, StageId};

/// Durations of actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// F, I and W take this many microseconds, B twice as many.
    Equal(u32),
    /// A different time for every stage and kind, 2 to 4.2 ms.
    Unequal,
    /// Like `Unequal`, with an R before every backward.
    Recomputing,
}

impl Times {
    pub fn name(self) -> String {
        match self {
            Self::Equal(time) if time >= 1000 => format!("{} ms", time / 1000),
            Self::Equal(time) => format!("{time} us"),
            Self::Unequal => "unequal".to_owned(),
            Self::Recomputing => "unequal, R".to_owned(),
        }
    }

    pub fn costs(self, stages: usize) -> Costs {
        let Self::Equal(time) = self else {
            return unequal(stages);
        };
        let time = micros(f64::from(time));
        Costs::uniform(stages, time, time, time)
    }

    /// Highest excess of a step over the simulated time.
    pub fn limit(self) -> f64 {
        match self {
            Self::Equal(time) if time < 1000 => 0.10,
            _ => 0.02,
        }
    }
}

fn micros(micros: f64) -> Micros {
    Micros::new(micros).unwrap_or_default()
}

fn unequal(stages: usize) -> Costs {
    let least = micros(2000.0);
    let kinds = ActionKind::ALL.into_iter().enumerate();
    let places = kinds.flat_map(|(k, kind)| (0..stages).map(move |stage| (k, kind, stage)));
    let times = places.map(|(k, kind, stage)| {
        // Covers all residues of 23, so that hardly two actions end at the same time.
        let more = (7 * stage + 11 * k) % 23;
        (StageId(stage), kind, least * (1.0 + more as f64 / 20.0))
    });
    let all = Costs::uniform(stages, least, least, least);
    times.fold(all, |costs, (stage, kind, time)| {
        costs.with_time(stage, kind, time)
    })
}

/// The idle share of device time by the schedule's closed form, if F, I and W take equally long; `None` if
/// there is no formula for the schedule or this shape.
pub fn closed_form(kind: ScheduleKind, shape: Shape) -> Option<f64> {
    let Shape {
        devices: p,
        chunks: v,
        micro_batches: m,
    } = shape;
    let (late, passes) = (p - 1, 3 * v * m);
    // In passes of a stage: a device's waiting time, and its work.
    let (idle, work) = match kind {
        ScheduleKind::GPipe | ScheduleKind::OneFOneB => (3 * late, passes),
        ScheduleKind::Interleaved1F1B | ScheduleKind::LoopedBfs if m >= p => (3 * late, passes),
        ScheduleKind::ZbH1 | ScheduleKind::InterleavedZb if m >= p => (late, passes),
        ScheduleKind::ZbH2 | ScheduleKind::Zbv if m + 1 >= 2 * p => (late, passes),
        // Its pairs run one after the other, each result leaving at once.
        ScheduleKind::DualPipeV if m >= 2 * p => (late, passes),
        ScheduleKind::VHalf if m >= p && p == 4 => (5, passes),
        ScheduleKind::VHalf if m >= p && p == 8 => (17, passes),
        ScheduleKind::VMin if m >= p && p == 4 => (11, passes),
        ScheduleKind::VMin if m >= p && p == 8 => (27, passes),
        ScheduleKind::ForwardOnly => (late, v * m),
        _ => return None,
    };
    Some(idle as f64 / (idle + work) as f64)
}
