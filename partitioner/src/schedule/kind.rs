//! The built-in schedules by their names.

use super::{
    Schedule, ScheduleError, Shape, dualpipe_v, forward_only, gpipe, interleaved_1f1b,
    interleaved_zb, looped_bfs, one_f_one_b, v_half, v_min, zb_h1, zb_h2, zbv,
};
use crate::check::{CheckedSchedule, MAX_CELLS, MAX_STAGES};
use crate::cost::Costs;
use crate::units::Micros;
use std::fmt;
use std::str::FromStr;

/// A built-in schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ScheduleKind {
    /// `gpipe`: all forwards, then all backwards.
    GPipe,
    /// `1f1b`: one forward, one backward; no more than p micro-batches in flight.
    OneFOneB,
    /// `interleaved-1f1b`: v chunks per device, a bubble v times smaller.
    Interleaved1F1B,
    /// `looped-bfs`: all forwards, then all backwards, over v chunks per device.
    LoopedBfs,
    /// `zb-h1`: the backward in halves, with the memory of 1F1B.
    ZbH1,
    /// `zb-h2`: the backward in halves, twice the memory, no bubble.
    ZbH2,
    /// `interleaved-zb`: ZB-H1 over v chunks per device.
    InterleavedZb,
    /// `zbv`: two chunks in a V, no bubble with the memory of 1F1B.
    Zbv,
    /// `v-half`: two chunks in a V, half the memory of 1F1B.
    VHalf,
    /// `v-min`: two chunks in a V, a third of the memory of 1F1B.
    VMin,
    /// `dualpipe-v`: two chunks in a V, forwards beside backwards.
    DualPipeV,
    /// `forward-only`: inference.
    ForwardOnly,
    /// `auto`: computed for the costs, see [`auto`](super::auto).
    Auto,
}

/// The largest p (p + m) of a schedule in a V.
const MAX_VEE: usize = 1 << 20;

impl ScheduleKind {
    /// Every built-in schedule.
    pub const ALL: [Self; 13] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved1F1B,
        Self::LoopedBfs,
        Self::ZbH1,
        Self::ZbH2,
        Self::InterleavedZb,
        Self::Zbv,
        Self::VHalf,
        Self::VMin,
        Self::DualPipeV,
        Self::ForwardOnly,
        Self::Auto,
    ];

    /// The name by which users ask for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved1F1B => "interleaved-1f1b",
            Self::LoopedBfs => "looped-bfs",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::InterleavedZb => "interleaved-zb",
            Self::Zbv => "zbv",
            Self::VHalf => "v-half",
            Self::VMin => "v-min",
            Self::DualPipeV => "dualpipe-v",
            Self::ForwardOnly => "forward-only",
            Self::Auto => "auto",
        }
    }

    /// How many chunks per device it is usually given: 1 where it has no more, 2 for
    /// those over several.
    pub const fn default_chunks(self) -> usize {
        match self {
            Self::GPipe
            | Self::OneFOneB
            | Self::ZbH1
            | Self::ZbH2
            | Self::ForwardOnly
            | Self::Auto => 1,
            Self::Interleaved1F1B
            | Self::LoopedBfs
            | Self::InterleavedZb
            | Self::Zbv
            | Self::VHalf
            | Self::VMin
            | Self::DualPipeV => 2,
        }
    }

    /// Whether it is made by placing two chunks a device in a V.
    const fn is_vee(self) -> bool {
        matches!(self, Self::Zbv | Self::VHalf | Self::VMin | Self::DualPipeV)
    }

    /// All names, separated by commas.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The schedule for p devices, v chunks per device and m micro-batches; `auto`
    /// for equal times of all passes and no caps.
    ///
    /// # Errors
    /// [`ScheduleError::Unsupported`] with the numbers that work.
    ///
    /// # Complexity
    /// Linear in the number of actions; for those in a V, whose greedy placement looks at
    /// all devices, O(p (p + m)) and worse, and therefore refused beyond sizes that take seconds.
    pub fn generate(self, shape: Shape) -> Result<CheckedSchedule, ScheduleError> {
        let unsupported = |needs| ScheduleError::Unsupported {
            kind: self,
            shape,
            needs,
        };
        if shape.devices == 0 || shape.chunks == 0 || shape.micro_batches == 0 {
            return Err(unsupported("at least one of each"));
        }
        let cells = shape.stages().checked_mul(shape.micro_batches);
        if shape.stages() > MAX_STAGES || cells.is_none_or(|cells| cells > MAX_CELLS) {
            return Err(unsupported(
                "at most 65536 stages, and stages times micro-batches at most 4194304",
            ));
        }
        let (p, m) = (shape.devices, shape.micro_batches);
        if self.is_vee() && p.saturating_mul(p + m) > MAX_VEE {
            return Err(unsupported(
                "devices times (devices plus micro-batches) of at most 1048576: making it takes \
                 time quadratic in the devices",
            ));
        }
        if self == Self::Auto {
            let unit = Micros::new(1.0).unwrap_or_default();
            let costs = Costs::uniform(shape.stages(), unit, unit, unit);
            return Ok(super::auto(shape, &costs, &[], None)?.schedule);
        }
        let (devices, pairs) = self.lists(shape).map_err(unsupported)?;
        let schedule = Schedule::new(self.name(), shape.stages(), shape.micro_batches, devices);
        Ok(schedule.with_pairs(pairs).check()?)
    }

    /// The action lists and the places of the pairs, or which numbers work.
    fn lists(self, shape: Shape) -> Result<dualpipe_v::Lists, &'static str> {
        let devices = match self {
            Self::GPipe => gpipe::lists(shape)?,
            Self::OneFOneB => one_f_one_b::lists(shape)?,
            Self::Interleaved1F1B => interleaved_1f1b::lists(shape),
            Self::LoopedBfs => looped_bfs::lists(shape),
            Self::ZbH1 => zb_h1::lists(shape)?,
            Self::ZbH2 => zb_h2::lists(shape)?,
            Self::InterleavedZb => interleaved_zb::lists(shape),
            Self::Zbv => zbv::lists(shape)?,
            Self::VHalf => v_half::lists(shape)?,
            Self::VMin => v_min::lists(shape)?,
            Self::DualPipeV => return dualpipe_v::lists(shape),
            Self::ForwardOnly => forward_only::lists(shape),
            Self::Auto => return Err("costs: it is computed, not listed"),
        };
        Ok((devices, Vec::new()))
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self, ScheduleError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| ScheduleError::UnknownName {
                suggestion: nearest(name),
                name: name.chars().take(40).collect(),
            })
    }
}

/// The kind whose name is a few edits away from `name`.
fn nearest(name: &str) -> Option<ScheduleKind> {
    let name: Vec<char> = name
        .to_lowercase()
        .replace('_', "-")
        .chars()
        .take(40)
        .collect();
    ScheduleKind::ALL
        .into_iter()
        .map(|kind| (edits(&name, &kind.name().chars().collect::<Vec<_>>()), kind))
        .filter(|&(distance, kind)| 2 * distance <= kind.name().len())
        .min()
        .map(|(_, kind)| kind)
}

/// Levenshtein's distance.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.name().parse::<ScheduleKind>().unwrap(), kind);
        }
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let error = "1F1B".parse::<ScheduleKind>().unwrap_err();
        assert!(
            error.to_string().contains("did you mean `1f1b`?"),
            "{error}"
        );
        let error = "quux".parse::<ScheduleKind>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("there is no schedule `quux`; there are gpipe, "),
            "{error}"
        );
    }

    #[test]
    fn shapes_that_no_schedule_has_are_refused() {
        for kind in ScheduleKind::ALL {
            for shape in [
                Shape::new(0, 1),
                Shape::new(1, 0),
                Shape::new(1, 1).with_chunks(0),
            ] {
                assert!(kind.generate(shape).is_err());
            }
            for huge in [1 << 30, usize::MAX] {
                assert!(kind.generate(Shape::new(huge, 1)).is_err());
                assert!(kind.generate(Shape::new(1, huge)).is_err());
                assert!(kind.generate(Shape::new(2, 2).with_chunks(huge)).is_err());
            }
        }
    }
}
