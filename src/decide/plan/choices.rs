//! Reasons for offloading or not, and for CUDA graphs or not: a line each, where it matters.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, Micros, More, Plan, PlanOptions, Profile, StageId, When,
    simulate,
};

use super::limit::{HOST, Priced};
use crate::titled_lines::Said;

const GRAPHS: &str = "CUDA graphs";

/// Returns the lines.
pub fn said(profile: &Profile, plan: &Plan, options: &PlanOptions) -> Vec<Said> {
    let Ok(schedule) = plan.generate() else {
        return Vec::new();
    };
    let choice = Choice {
        profile,
        plan,
        options,
        schedule,
    };
    let all = [choice.offload(), choice.graphs()];
    all.into_iter().flatten().collect()
}

struct Choice<'a> {
    profile: &'a Profile,
    plan: &'a Plan,
    options: &'a PlanOptions,
    schedule: CheckedSchedule,
}

impl Choice<'_> {
    fn offload(&self) -> Option<Said> {
        let own = |list: &[bool]| -> Vec<usize> {
            let stages = list.iter().enumerate();
            stages.filter(|(_, yes)| **yes).map(|(s, _)| s).collect()
        };
        let (offload, recompute) = (own(&self.plan.offload), own(&self.plan.recompute));
        if !offload.is_empty() {
            return Some(Said::new("offload", self.offloads(&offload)));
        }
        let matters = self.profile.device() != "cpu" || self.options.machine.host_link().is_some();
        if recompute.is_empty() || !matters {
            return None;
        }
        let why_not = if self.options.machine.host_link().is_none() {
            "no link to the host's memory was measured: give one with --host-link".to_owned()
        } else if self.options.offload == When::Never {
            "--offload never".to_owned()
        } else {
            self.instead(&self.variant(|plan| {
                std::mem::swap(&mut plan.offload, &mut plan.recompute);
            }))
        };
        let stages = numbers(&recompute);
        let text = format!("recomputed, not offloaded: {stages}, since {why_not}");
        Some(Said::new("recompute", text))
    }

    fn offloads(&self, stages: &[usize]) -> String {
        let costs = self.plan.costs(self.profile, self.options, &self.schedule);
        let moved: Bytes = (stages.iter())
            .map(|&stage| costs.memory(StageId(stage)).offloaded)
            .sum();
        let kept = self.variant(|plan| plan.offload.fill(false));
        let again = self.variant(|plan| {
            let offload = plan.offload.clone();
            plan.offload.fill(false);
            let both = plan.recompute.iter_mut().zip(offload);
            both.for_each(|(redo, away)| *redo |= away);
        });
        format!(
            "{moved} of each micro-batch of {} wait in the host's memory; kept on the \
             devices, {}; recomputed, {}",
            numbers(stages),
            self.instead(&kept),
            self.instead(&again),
        )
    }

    fn graphs(&self) -> Option<Said> {
        let stages = 0..self.plan.partition.stages();
        let refusals: Vec<String> = stages.filter_map(|stage| self.refusal(stage)).collect();
        let all = self.plan.partition.stages();
        if self.plan.cuda_graphs {
            let without = self.variant(|plan| plan.cuda_graphs = false);
            let on = all - refusals.len();
            let others = refusals
                .first()
                .map_or(String::new(), |why| format!(" ({why})"));
            let text = format!(
                "on {on} of {}{others}; without, {}",
                count(all, "stage"),
                self.instead(&without)
            );
            return Some(Said::new(GRAPHS, text));
        }
        let schedule = self.schedule.clone();
        let priced = Priced::under(schedule, self.profile, self.plan, self.options);
        if priced.saved(Costs::without_host) <= HOST {
            return None;
        }
        let why_not = if self.options.cuda_graphs == When::Never {
            "--cuda-graphs never".to_owned()
        } else if let Some(why) = refusals.first().filter(|_| refusals.len() == all) {
            why.clone()
        } else {
            self.instead(&self.variant(|plan| plan.cuda_graphs = true))
        };
        let text = format!("none, though the devices wait for the host: {why_not}");
        Some(Said::new(GRAPHS, text))
    }

    /// Returns why a stage can have no graphs.
    fn refusal(&self, stage: usize) -> Option<String> {
        if self.plan.recompute[stage] {
            return Some(format!("stage {stage} recomputes"));
        }
        if self.plan.offload[stage] {
            return Some(format!("stage {stage} offloads"));
        }
        let layers = &self.profile.layers()[self.plan.partition.range(StageId(stage))];
        layers.iter().find_map(|layer| match &layer.no_graph {
            Some(why) => Some(format!("layer `{}`: {why}", layer.name)),
            None if layer.host.is_none() => Some(format!(
                "the profile does not say what the host does of layer `{}`",
                layer.name
            )),
            None => None,
        })
    }

    fn variant(&self, change: impl FnOnce(&mut Plan)) -> Plan {
        let mut plan = self.plan.clone();
        change(&mut plan);
        plan
    }

    /// Returns the result of the other choice: too much memory, or the step time.
    fn instead(&self, plan: &Plan) -> String {
        let costs = plan.costs(self.profile, self.options, &self.schedule);
        let simulation = simulate(&self.schedule, &costs);
        let devices = self.options.machine.devices().iter();
        let mut peaks = simulation.peak_bytes().into_iter().zip(devices).enumerate();
        let full = peaks.find_map(|(device, (peak, own))| {
            let limit = own.memory.filter(|limit| peak > *limit)?;
            Some(format!("device {device} would need {peak} of its {limit}"))
        });
        let step: Micros = simulation.makespan();
        full.unwrap_or_else(|| format!("a step would take {step} instead of {}", self.plan.step))
    }
}

fn numbers(stages: &[usize]) -> String {
    let list: Vec<String> = stages.iter().map(usize::to_string).collect();
    match stages.len() {
        1 => format!("stage {}", list[0]),
        _ => format!("stages {}", list.join(", ")),
    }
}

/// A smaller relative gain counts as none.
const SHORTER: f64 = 0.0005;

/// Returns the gain from one more device or GiB, if it was computed.
pub(super) fn more(plan: &Plan) -> Option<Said> {
    let words = |more: &More| {
        let saved = 1.0 - more.step.get() / plan.step.get();
        if saved > SHORTER {
            let percent = 100.0 * saved;
            format!(
                "{}: a step of {}, {percent:.1} % less",
                more.what, more.step
            )
        } else {
            format!("{}: no shorter step", more.what)
        }
    };
    let gains: Vec<String> = plan.more.iter().map(words).collect();
    (!gains.is_empty()).then(|| Said::new("more", format!("with {}", gains.join("; with "))))
}
