//! Throughputs of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
//! Using Megatron-LM", arXiv:2104.04473: table 1, from the sizes in it. Its micro-batches and chunks
//! are not published: the plan chooses them.

use gpipe_partitioner::analytic::Attention;
use gpipe_partitioner::machine::cluster::KnownNode;
use gpipe_partitioner::{
    ScheduleKind, Transformer, TransformerOptions, TransformerPlan, When, plan_transformer,
};

use crate::table::{Limit, Row, Unit};

struct Case {
    heads: usize,
    hidden: usize,
    layers: usize,
    tensor: usize,
    pipeline: usize,
    cards: usize,
    batch: usize,
    teraflops: f64,
}

#[rustfmt::skip]
const TABLE: [[usize; 8]; 10] = [
    [24, 2304, 24, 1, 1, 32, 512, 137],
    [32, 3072, 30, 2, 1, 64, 512, 138],
    [32, 4096, 36, 4, 1, 128, 512, 142],
    [48, 6144, 40, 8, 1, 256, 1024, 135],
    [64, 8192, 48, 8, 2, 512, 1536, 138],
    [80, 10240, 60, 8, 4, 1024, 1792, 140],
    [96, 12288, 80, 8, 8, 1536, 2304, 148],
    [128, 16384, 96, 8, 16, 1920, 2160, 155],
    [128, 20480, 105, 8, 35, 2520, 2520, 163],
    [160, 25600, 128, 8, 64, 3072, 3072, 163],
];

/// Published choices that are left to the plan.
#[derive(Clone, Copy, PartialEq)]
enum Free {
    Neither,
    Pipeline,
    All,
}

impl Case {
    fn new(row: [usize; 8]) -> Self {
        let [
            heads,
            hidden,
            layers,
            tensor,
            pipeline,
            cards,
            batch,
            teraflops,
        ] = row;
        Self {
            heads,
            hidden,
            layers,
            tensor,
            pipeline,
            cards,
            batch,
            teraflops: teraflops as f64,
        }
    }

    fn model(&self) -> Transformer {
        let gpt = Transformer::gpt(self.layers, self.hidden, self.heads, 2048, 51_200).unwrap();
        gpt.with_attention(Attention::Stored)
    }

    fn replicas(&self) -> usize {
        self.cards / self.tensor / self.pipeline
    }

    /// As it was trained: interleaved 1F1B, full recompute, no shared optimizer state, and no sequence
    /// parallelism.
    fn plan(&self, free: Free) -> TransformerPlan {
        let node = KnownNode::named("dgx-a100").unwrap();
        let cluster = node.cluster(self.cards / node.cards).unwrap();
        let mut options = TransformerOptions::new(cluster, self.batch);
        options.sequence_parallel = false;
        options.cluster.recompute = When::Always;
        options.cluster.shard_optimizer = When::Never;
        options.cluster.schedule = Some(ScheduleKind::Interleaved1F1B);
        options.tensor_parallel = (free != Free::All).then_some(self.tensor);
        if free == Free::Neither {
            options.cluster.devices = Some(self.pipeline);
            options.cluster.replicas = Some(self.replicas());
        }
        plan_transformer(&self.model(), &options).unwrap()
    }

    /// By equation 3 of the paper, which counts the recompute.
    fn teraflops(&self, plan: &TransformerPlan) -> f64 {
        let (s, v) = (2048.0, 51_200.0);
        let (l, h) = (self.layers as f64, self.hidden as f64);
        let sums = 1.0 + s / (6.0 * h) + v / (16.0 * l * h);
        let flops = 96.0 * self.batch as f64 * s * l * h * h * sums;
        flops / plan.plan.step.get() * 1e6 / self.cards as f64 / 1e12
    }

    fn rows(&self) -> [Row; 3] {
        let plan = |free| self.plan(free);
        let (fixed, pipeline, all) = (plan(Free::Neither), plan(Free::Pipeline), plan(Free::All));
        let step = |plan: &TransformerPlan| plan.plan.step.get();
        let row = |what: String, unit, published, own, limit, why| Row {
            source: "Megatron-LM, table 1",
            case: format!(
                "{:.1} B on {}, t {}, p {}, d {}",
                self.model().parameters() as f64 / 1e9,
                self.cards,
                self.tensor,
                self.pipeline,
                self.replicas()
            ),
            what,
            unit,
            published,
            own,
            limit,
            why,
        };
        let spread = |own: &TransformerPlan| {
            let (t, p, d) = (
                own.plan.tensor_parallel,
                own.plan.devices(),
                own.plan.replicas,
            );
            format!("its step by that of the plan's own t {t}, p {p}, d {d}")
        };
        [
            row(
                "throughput of a card".to_owned(),
                Unit::Teraflops,
                self.teraflops,
                self.teraflops(&fixed),
                Limit::Percent(15.0),
                None,
            ),
            row(
                format!("{}, the same t given", spread(&pipeline)),
                Unit::Times,
                1.0,
                step(&fixed) / step(&pipeline),
                Limit::Percent(5.0),
                None,
            ),
            row(
                spread(&all),
                Unit::Times,
                1.0,
                step(&fixed) / step(&all),
                Limit::Percent(5.0),
                Some(
                    "smaller groups in longer pipelines are predicted to be faster than the paper's \
                     groups of a whole node; the paper does not measure them for these models, so \
                     that which of the two is wrong is not known",
                ),
            ),
        ]
    }
}

pub(crate) fn rows() -> Vec<Row> {
    TABLE
        .into_iter()
        .flat_map(|row| Case::new(row).rows())
        .collect()
}
