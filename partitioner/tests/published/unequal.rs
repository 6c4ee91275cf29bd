//! Unequal cards, as in the book's page on planning from a model's shapes.

use gpipe_partitioner::{
    Cluster, Partition, Transformer, TransformerOptions, plan_transformer, simulate,
};

const CLUSTER: &str = "
[[nodes]]
count = 1
like = \"dgx-h100\"
[[nodes]]
count = 1
like = \"dgx-a100\"
";

/// The plan's cut against one with as many layers on each stage, under the same schedule.
#[test]
fn unequal_stages_are_faster_on_unequal_cards() {
    let cluster = Cluster::from_toml(CLUSTER, "cluster.toml").unwrap();
    let mut options = TransformerOptions::new(cluster, 128);
    options.tensor_parallel = Some(8);
    options.cluster.devices = Some(2);
    let model: Transformer = "llama3-8b".parse().unwrap();
    let chosen = plan_transformer(&model, &options).unwrap();
    let layers = chosen.profile.layers().len();
    let mut equal = chosen.plan.clone();
    equal.partition = Partition::uniform(layers, 2).unwrap();
    let schedule = equal.generate().unwrap();
    let costs = equal.costs(&chosen.profile, &chosen.options, &schedule);
    let step = simulate(&schedule, &costs).makespan();
    let balance = chosen.plan.partition.balance();
    assert!(balance[0] > 2 * balance[1], "{balance:?}");
    assert!(step > chosen.plan.step * 1.3, "{step}");
}
