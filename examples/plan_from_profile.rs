//! Plans for other machines, from a profile measured once. Needs no libtorch: `cargo run
//! --no-default-features --example plan_from_profile`.

use gpipe::partitioner::{Machine, PlanOptions, Profile, plan};

fn main() -> anyhow::Result<()> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/data/profiles/gpt.json"
    );
    let profile = Profile::read(file)?;
    println!("devices  step        bubble  fullest     schedule, micro-batches, layers");
    for devices in [1, 2, 4] {
        let machine = Machine::new(devices)?
            .with_memory(&["512MiB".parse()?])?
            .with_link("10GB/s,20us".parse()?);
        let mut options = PlanOptions::new(machine);
        options.batch = Some(32);
        match plan(&profile, &options) {
            Ok(plan) => println!(
                "{devices:>7}  {:<10}  {:>5.1} %  {:<10}  {}, {}, {:?}",
                plan.step.to_string(),
                100.0 * plan.bubble_fraction,
                plan.peak_bytes
                    .iter()
                    .max()
                    .map_or(String::new(), |bytes| bytes.to_string()),
                plan.schedule,
                plan.micro_batches,
                plan.partition.balance()
            ),
            // The error gives the missing bytes, and remedies.
            Err(error) => println!("{devices:>7}  {error}"),
        }
    }
    Ok(())
}
