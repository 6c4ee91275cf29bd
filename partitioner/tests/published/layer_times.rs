//! Layer times behind the efficiency curve: table 9 of arXiv:2401.10241.

use gpipe_partitioner::analytic::Attention;
use gpipe_partitioner::machine::cluster::KnownNode;
use gpipe_partitioner::{TensorGroup, Transformer};

use crate::table::{Limit, Row, Unit, assert_met};
use crate::zero_bubble::SETTINGS;

pub(crate) fn rows() -> Vec<Row> {
    let peak = KnownNode::named("dgx-a100").unwrap().card.peak.unwrap();
    let of = |setting: &crate::zero_bubble::Setting| {
        let layers = setting.layers / setting.stages;
        let gpt = Transformer::gpt(layers, setting.hidden, setting.heads, 1024, 51_200).unwrap();
        let gpt = gpt.with_attention(Attention::Stored);
        let profile = gpt.profile(&TensorGroup::new(peak)).unwrap();
        let cost = profile.costs(setting.size)[1];
        let own = [cost.forward, cost.input, cost.weight];
        let names = ["F", "B", "W"];
        let both = names.into_iter().zip(own).zip(setting.times);
        both.map(|((name, own), published)| Row {
            source: "Zero Bubble, table 9",
            case: format!(
                "{}, {layers} layers of {} samples",
                setting.model, setting.size
            ),
            what: format!("time of {name}, which the curve is from"),
            unit: Unit::Milliseconds,
            published,
            own: own.get() * layers as f64 / 1e3,
            limit: Limit::Percent(5.0),
            why: None,
        })
        .collect::<Vec<_>>()
    };
    SETTINGS.iter().flat_map(of).collect()
}

#[test]
fn the_curve_meets_the_times_it_is_from() {
    assert_met(&rows());
}
