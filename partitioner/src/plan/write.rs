//! Writer of `plan.json`.

use serde_json::{Value, json};

use super::{Alternative, PLAN_VERSION, Plan};
use crate::machine::Neighbours;
use crate::profile::link_value;

impl Plan {
    /// Returns the plan as JSON.
    pub fn to_json(&self) -> String {
        let mut value = json!({
            "version": PLAN_VERSION,
            "balance": self.partition.balance(),
            "placement": self.placement,
            "schedule": self.schedule.name(),
            "micro_batches": self.micro_batches,
            "chunks": self.chunks,
            "micro_batch_size": self.micro_batch_size,
            "recompute": self.recompute,
            "bottleneck_us": self.bottleneck,
            "step_us": self.step,
            "bubble_fraction": self.bubble_fraction,
            "peak_bytes": self.peak_bytes,
            "alternatives": self.alternatives.iter()
                .map(|other| alternative_value(other, (self.replicas, self.devices())))
                .collect::<Vec<_>>(),
        });
        if let Some(batch) = self.batch {
            value["batch"] = json!(batch);
        }
        if self.replicas > 1 {
            value["replicas"] = json!(self.replicas);
        }
        if self.tensor_parallel > 1 {
            value["tensor_parallel"] = json!(self.tensor_parallel);
        }
        if self.neighbours != Neighbours::default() {
            value["neighbours"] = json!(self.neighbours.name());
        }
        if self.shard_optimizer {
            value["shard_optimizer"] = json!(true);
        }
        if let Some(bound) = self.lower_bound {
            value["lower_bound_us"] = json!(bound);
        }
        if let Some(limit) = &self.limit {
            value["limit"] = json!(limit);
        }
        if !self.more.is_empty() {
            let more = self.more.iter();
            let more = more.map(|own| json!({"what": own.what, "step_us": own.step}));
            value["more"] = more.collect();
        }
        if let Some(nodes) = &self.nodes {
            value["nodes"] = json!({
                "devices": nodes.devices(),
                "link": link_value(&nodes.link()),
                "nic_per_device": nodes.nic_per_device(),
            });
        }
        if self.offload.contains(&true) {
            value["offload"] = json!(self.offload);
        }
        if self.cuda_graphs {
            value["cuda_graphs"] = json!(true);
        }
        if let Some(model) = &self.model {
            value["model"] = model.to_value();
        }
        if let Some(precision) = &self.precision {
            value["precision"] = json!(precision);
        }
        if let Some(kernels) = &self.kernels {
            value["kernels"] = json!(kernels);
        }
        if let Some(device) = &self.device {
            value["device"] = json!(device);
        }
        if !self.doubts.is_empty() {
            value["doubts"] = json!(self.doubts);
        }
        if let Some(schedule) = &self.computed {
            let csv = schedule.to_csv();
            value["actions"] = csv.lines().collect();
        }
        format!("{value:#}\n")
    }
}

/// `own`: replicas and devices of the plan itself.
fn alternative_value(alternative: &Alternative, own: (usize, usize)) -> Value {
    let mut value = json!({
        "schedule": alternative.schedule.name(),
        "chunks": alternative.chunks,
        "micro_batches": alternative.micro_batches,
        "balance": alternative.balance,
        "recomputing": alternative.recomputing,
        "step_us": alternative.step,
        "bubble_fraction": alternative.bubble_fraction,
        "peak_bytes": alternative.peak_bytes,
        "reason": alternative.reason,
    });
    if (alternative.replicas, alternative.devices) != own {
        value["replicas"] = json!(alternative.replicas);
        value["devices"] = json!(alternative.devices);
    }
    if alternative.neighbours != Neighbours::default() {
        value["neighbours"] = json!(alternative.neighbours.name());
    }
    value
}
