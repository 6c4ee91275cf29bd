//! The table of the built-in schedules: one row each.

use super::lists::{Generated, Generator};

/// Properties of a schedule in the table.
struct Row {
    name: &'static str,
    chunks: usize,
    /// Whether the schedule has backwards.
    trains: bool,
    /// None for the schedule computed from costs.
    generator: Option<Generator>,
}

/// Makes the enum, its list and the table of rows
/// `Variant = "name", chunks: default[, trains: false][, file: module];`.
macro_rules! schedules {
    ($(
        $(#[$doc:meta])*
        $kind:ident = $name:literal, chunks: $chunks:literal
            $(, trains: $trains:literal)? $(, file: $file:ident)?;
    )*) => {
        /// A built-in schedule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ScheduleKind {
            $($(#[$doc])* $kind,)*
        }

        const COUNT: usize = [$($name),*].len();

        /// In the order of the enum.
        static ROWS: [Row; COUNT] = [$(Row {
            name: $name,
            chunks: $chunks,
            trains: true $(&& $trains)?,
            generator: schedules!(@generator $($file)?),
        },)*];

        impl ScheduleKind {
            /// Every built-in schedule.
            pub const ALL: [Self; COUNT] = [$(Self::$kind,)*];
        }

        /// The text of each generator's file.
        #[cfg(test)]
        pub(super) const SOURCES: &[(ScheduleKind, &str)] = &[$($(
            (ScheduleKind::$kind, include_str!(concat!(stringify!($file), ".rs"))),
        )?)*];
    };
    (@generator) => { None };
    (@generator $file:ident) => { Some(|shape| super::$file::lists(shape).generated()) };
}

schedules! {
    /// `gpipe`: all forwards, then all backwards.
    #[doc(alias = "fill-drain")]
    GPipe = "gpipe", chunks: 1, file: gpipe;
    /// `1f1b`: one forward, one backward; no more than p micro-batches in flight.
    #[doc(alias = "1f1b")]
    #[doc(alias = "PipeDream-Flush")]
    OneFOneB = "1f1b", chunks: 1, file: one_f_one_b;
    /// `interleaved-1f1b`: v chunks per device, a bubble v times smaller.
    #[doc(alias = "virtual pipeline")]
    Interleaved1F1B = "interleaved-1f1b", chunks: 2, file: interleaved_1f1b;
    /// `looped-bfs`: all forwards, then all backwards, over v chunks per device.
    #[doc(alias = "breadth-first")]
    LoopedBfs = "looped-bfs", chunks: 2, file: looped_bfs;
    /// `zb-h1`: the backward in halves, with the memory of 1F1B.
    #[doc(alias = "zero bubble")]
    ZbH1 = "zb-h1", chunks: 1, file: zb_h1;
    /// `zb-h2`: the backward in halves, twice the memory, no bubble.
    #[doc(alias = "zero bubble")]
    ZbH2 = "zb-h2", chunks: 1, file: zb_h2;
    /// `interleaved-zb`: ZB-H1 over v chunks per device.
    InterleavedZb = "interleaved-zb", chunks: 2, file: interleaved_zb;
    /// `zbv`: two chunks in a V, no bubble with the memory of 1F1B.
    #[doc(alias = "zero bubble")]
    Zbv = "zbv", chunks: 2, file: zbv;
    /// `v-half`: two chunks in a V, half the memory of 1F1B.
    VHalf = "v-half", chunks: 2, file: v_half;
    /// `v-min`: two chunks in a V, a third of the memory of 1F1B.
    VMin = "v-min", chunks: 2, file: v_min;
    /// `dualpipe-v`: two chunks in a V, forwards beside backwards.
    DualPipeV = "dualpipe-v", chunks: 2, file: dualpipe_v;
    /// `forward-only`: inference.
    ForwardOnly = "forward-only", chunks: 1, trains: false, file: forward_only;
    /// `auto`: computed for the costs, see [`auto`](crate::auto()).
    Auto = "auto", chunks: 1;
}

impl ScheduleKind {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The usual number of chunks per device: 1 for schedules with one chunk, 2 for the others.
    pub const fn default_chunks(self) -> usize {
        self.row().chunks
    }

    /// Whether the schedule has backwards; inference has none.
    pub const fn trains(self) -> bool {
        self.row().trains
    }

    /// The generator of its lists; none for `auto`, which is computed from costs.
    pub(super) const fn generator(self) -> Option<Generator> {
        self.row().generator
    }
}
