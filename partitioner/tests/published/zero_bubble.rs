//! Bubble rates of Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241: table 5, from
//! the times of its table 9 and the sizes of its table 3.

use gpipe_partitioner::{
    Bytes, Costs, DeviceId, Micros, ScheduleKind, Shape, Simulation, StageId, StageMemory,
    auto_in_a_row, simulate,
};

use crate::table::{Limit, Row, Unit, assert_met};

/// Steps in a row without a barrier; the paper's rate is that of the device active longest in them.
const STEPS: usize = 3;

/// A setting of the paper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) model: &'static str,
    /// Layers as counted per stage: the first and the last stage have one less, for the embedding and the
    /// head.
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    /// Samples of a micro-batch, with 1,024 tokens each.
    pub(crate) size: usize,
    pub(crate) stages: usize,
    micro_batches: usize,
    /// F, B, W and a transfer, in milliseconds.
    pub(crate) times: [f64; 4],
    /// 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p and ZB-2p, in percent.
    bubbles: [f64; 6],
}

const fn setting(
    (model, layers, heads, hidden, size, stages): (&'static str, usize, usize, usize, usize, usize),
    micro_batches: usize,
    times: [f64; 4],
    bubbles: [f64; 6],
) -> Setting {
    Setting {
        model,
        layers,
        heads,
        hidden,
        size,
        stages,
        micro_batches,
        times,
        bubbles,
    }
}

type Model = (&'static str, usize, usize, usize, usize, usize);
const SMALL: Model = ("1.5 B", 24, 24, 2304, 6, 8);
const MIDDLE: Model = ("6.2 B", 32, 32, 4096, 3, 8);
const LARGE: Model = ("14.6 B", 48, 40, 5120, 1, 16);
const LARGEST: Model = ("28.3 B", 64, 48, 6144, 1, 32);

#[allow(clippy::approx_constant)] // 6.28 % is a published rate.
#[rustfmt::skip]
pub(crate) const SETTINGS: [Setting; 12] = [
    setting(SMALL, 24, [18.522, 18.086, 9.337, 0.601], [24.31, 10.55, 15.85, 10.83, 15.85, 4.33]),
    setting(SMALL, 32, [18.513, 18.086, 9.331, 0.626], [19.85, 8.18, 12.42, 8.37, 12.42, 0.39]),
    setting(SMALL, 64, [18.546, 18.097, 9.321, 0.762], [12.40, 4.43, 6.74, 4.44, 6.74, 0.26]),
    setting(MIDDLE, 24, [29.718, 29.444, 19.927, 0.527], [23.47, 8.08, 13.23, 6.98, 13.23, 0.29]),
    setting(MIDDLE, 32, [29.802, 29.428, 19.530, 0.577], [18.98, 6.28, 10.45, 5.59, 10.45, 0.22]),
    setting(MIDDLE, 64, [29.935, 29.621, 19.388, 0.535], [10.91, 3.20, 5.54, 2.94, 5.54, 0.10]),
    setting(LARGE, 48, [11.347, 11.248, 8.132, 0.377], [25.52, 11.04, 13.97, 6.72, 13.97, 0.66]),
    setting(LARGE, 64, [11.307, 11.254, 8.101, 0.379], [20.82, 8.52, 10.88, 5.16, 10.88, 0.54]),
    setting(LARGE, 128, [11.325, 11.308, 8.109, 0.378], [12.51, 4.45, 5.76, 2.66, 5.76, 0.28]),
    setting(LARGEST, 96, [10.419, 10.207, 7.715, 0.408], [26.46, 14.93, 14.21, 6.41, 14.21, 0.38]),
    setting(LARGEST, 128, [10.408, 10.204, 7.703, 0.408], [21.68, 11.64, 11.06, 4.90, 11.06, 0.29]),
    setting(LARGEST, 256, [10.402, 10.248, 7.698, 0.460], [13.52, 6.24, 5.94, 2.57, 5.94, 0.18]),
];

/// Returns the bubble rate of the paper's section 5.3: the idle share of the device that is active longest.
pub(crate) fn bubble_rate(simulation: &Simulation, work: f64) -> f64 {
    let timeline = &simulation.timeline;
    let devices = (0..timeline.devices()).map(DeviceId);
    let spans = devices.map(|device| {
        let (busy, idle) = (timeline.busy(device), timeline.idle_within(device));
        (busy + idle).get()
    });
    100.0 * (1.0 - work / spans.fold(0.0, f64::max))
}

impl Setting {
    fn costs(&self, chunks: usize) -> Costs {
        let [forward, input, weight, transfer] = self.times;
        let part = |time: f64| Micros::new(time * 1000.0 / chunks as f64).unwrap();
        let transfer = Micros::new(transfer * 1000.0).unwrap();
        Costs::uniform(
            self.stages * chunks,
            part(forward),
            part(input),
            part(weight),
        )
        .with_transfer(Micros::ZERO, transfer)
    }

    fn rate(&self, simulation: &Simulation) -> f64 {
        let [forward, input, weight, _] = self.times;
        let work = 1000.0 * self.micro_batches as f64 * (forward + input + weight);
        bubble_rate(simulation, work)
    }

    fn built_in(&self, kind: ScheduleKind, chunks: usize) -> f64 {
        let shape = Shape::new(self.stages, self.micro_batches).with_chunks(chunks);
        let schedule = kind.generate(shape).unwrap();
        self.rate(&simulate(&schedule, &self.costs(chunks)))
    }

    /// Simulates a schedule computed for steps in a row under a limit of `times` p micro-batches'
    /// activations. Between its halves a backward keeps 32 s b h of s b (34 h + 5 a s) bytes (table 1).
    fn computed(&self, times: u64) -> f64 {
        let scores = 5.0 * self.heads as f64 * 1024.0 / self.hidden as f64;
        let all = (1000.0 * (34.0 + scores)) as u64;
        let memory = StageMemory {
            activation: Bytes(all),
            kept_for_weight: Some(Bytes(32_000)),
            ..StageMemory::default()
        };
        let stages = (0..self.stages).map(StageId);
        let costs = stages.fold(self.costs(1), |costs, stage| {
            costs.with_memory(stage, memory)
        });
        let caps = vec![Some(Bytes(all * times * self.stages as u64)); self.stages];
        let shape = Shape::new(self.stages, self.micro_batches);
        let found = auto_in_a_row(shape, &costs, &caps, None, STEPS).unwrap();
        self.rate(&simulate(&found.schedule, &costs))
    }
}

/// Returns all rows: six for each setting.
pub(crate) fn rows() -> Vec<Row> {
    let of = |setting: &Setting| {
        let layers = setting.layers / setting.stages;
        let own = [
            ("1F1B", setting.built_in(ScheduleKind::OneFOneB, 1)),
            (
                "1F1B-I",
                setting.built_in(ScheduleKind::Interleaved1F1B, layers),
            ),
            ("ZB-H1", setting.built_in(ScheduleKind::ZbH1, 1)),
            ("ZB-H2", setting.built_in(ScheduleKind::ZbH2, 1)),
            ("ZB-1p", setting.computed(1)),
            ("ZB-2p", setting.computed(2)),
        ];
        let rows = own.into_iter().zip(setting.bubbles);
        rows.map(|((what, own), published)| Row {
            source: "Zero Bubble, tables 5 and 9",
            case: format!(
                "{}, p {}, m {}",
                setting.model, setting.stages, setting.micro_batches
            ),
            what: format!("bubble of {what}"),
            unit: Unit::Percent,
            published,
            own,
            limit: Limit::Points(2.0),
            why: None,
        })
        .collect::<Vec<_>>()
    };
    SETTINGS.iter().flat_map(of).collect()
}

#[test]
fn the_bubbles_of_zero_bubble_are_met() {
    assert_met(&rows());
}
