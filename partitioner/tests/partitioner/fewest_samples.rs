//! Plans never use micro-batches of fewer samples than the model can train on.

use gpipe_partitioner::machine::cluster::KnownNode;
use gpipe_partitioner::{
    Bytes, ClusterOptions, LayerProfile, LayerTimes, Machine, Micros, PlanError, PlanOptions,
    Profile, plan, plan_cluster,
};

/// Returns layers that take as long for one sample as for many: more micro-batches mean less idle
/// time.
fn profile(fewest: usize) -> Profile {
    let time = Micros::new(100.0).unwrap();
    let layer =
        |index: usize| {
            LayerProfile::new(format!("layer.{index}"), LayerTimes::new(time, time, time))
                .with_bytes(Bytes(64), Bytes(64), Bytes(8))
        };
    let profile = Profile::new("cpu", 1, (0..8).map(layer).collect()).unwrap();
    profile.with_fewest_samples(fewest)
}

fn options(batch: usize, micro: Option<usize>, replicas: usize) -> PlanOptions {
    let machine = Machine::new(4).unwrap().with_replicas(replicas).unwrap();
    let mut options = PlanOptions::new(machine);
    options.batch = Some(batch);
    options.micro_batches = micro;
    options
}

#[test]
fn a_file_carries_it() {
    let own = profile(2);
    let text = own.to_json();
    assert!(text.contains("\"fewest_samples\": 2"), "{text}");
    assert_eq!(Profile::from_json(&text, "p.json").unwrap(), own);
    assert!(!profile(1).to_json().contains("fewest_samples"));
    let none = text.replace("\"fewest_samples\": 2", "\"fewest_samples\": 0");
    let error = Profile::from_json(none, "p.json").unwrap_err().to_string();
    assert!(error.starts_with("p.json: fewest_samples: "), "{error}");
}

/// Regression: 17 samples for two replicas were planned as nine micro-batches of eight samples.
#[test]
fn plans_keep_to_it() {
    for (batch, replicas) in [(16, 1), (15, 1), (17, 2), (32, 2)] {
        let smallest = |fewest| {
            let plan = plan(&profile(fewest), &options(batch, None, replicas)).unwrap();
            batch / plan.micro_batches
        };
        // The limit is what prevents smaller ones.
        assert_eq!(smallest(1), 1, "{batch} samples");
        assert!(smallest(2) >= 2, "{batch} samples: {}", smallest(2));
        assert!(smallest(3) >= 3, "{batch} samples: {}", smallest(3));
    }
}

#[test]
fn plans_of_clusters_keep_to_it() {
    let cluster = KnownNode::named("dgx-a100").unwrap().cluster(1).unwrap();
    let options = ClusterOptions::new(cluster, 16);
    let smallest = |fewest| {
        let (plan, _) = plan_cluster(&profile(fewest), &options).unwrap();
        16 / plan.micro_batches
    };
    assert_eq!(smallest(1), 1);
    assert!(smallest(2) >= 2, "{}", smallest(2));
    let mut asked = options.clone();
    asked.micro_batch_size = Some(1);
    assert_refused(&plan_cluster(&profile(2), &asked).unwrap_err());
    asked.micro_batch_size = None;
    asked.micro_batches = Some(16);
    assert_refused(&plan_cluster(&profile(2), &asked).unwrap_err());
}

#[test]
fn what_asks_for_fewer_is_refused_with_what_would_do() {
    let error = plan(&profile(2), &options(8, Some(8), 1)).unwrap_err();
    let text = error.to_string();
    assert_refused(&error);
    assert!(
        text.contains("a mini-batch of 16 samples, or 4 micro-batches at most"),
        "{text}"
    );
    assert_refused(&plan(&profile(2), &options(1, None, 1)).unwrap_err());
}

fn assert_refused(error: &PlanError) {
    assert!(matches!(error, PlanError::Options(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("trains on no fewer than 2"), "{text}");
}
