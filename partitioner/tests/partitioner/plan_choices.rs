//! Open choices of a plan against every way to fix them by a flag.

use gpipe_partitioner::{Machine, Plan, PlanOptions, Profile, plan};

fn profile() -> Profile {
    let text = include_str!("../../../examples/data/profiles/gpt.json");
    Profile::from_json(text, "gpt.json").unwrap()
}

/// Regression: only the fastest number of micro-batches of each schedule was improved further, so
/// `--micro 8` was 1.4 % faster than leaving it open.
#[test]
fn leaving_chunks_and_micro_batches_open_is_never_slower_than_fixing_them() {
    let profile = profile();
    for memory in ["200MiB", "205MiB"] {
        let machine = Machine::new(4).unwrap();
        let mut open = PlanOptions::new(machine.with_memory(&[memory.parse().unwrap()]).unwrap());
        open.batch = Some(32);
        let planned = |options: &PlanOptions| plan(&profile, options).ok();
        let best = planned(&open).unwrap().step;
        let fixed = |micro, chunks| {
            let mut fixed = open.clone();
            (fixed.micro_batches, fixed.chunks) = (micro, chunks);
            fixed
        };
        let micro = [4, 8, 16].map(|micro| fixed(Some(micro), None));
        let chunks = [1, 2].map(|chunks| fixed(None, Some(chunks)));
        for fixed in micro.iter().chain(&chunks) {
            let step = planned(fixed).map(|plan: Plan| plan.step);
            assert!(
                step.is_none_or(|step| best <= step),
                "{memory}, {:?} micro-batches, {:?} chunks: {step:?}, open {best}",
                fixed.micro_batches,
                fixed.chunks
            );
        }
    }
}
