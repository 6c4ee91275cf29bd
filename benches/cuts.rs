//! Checks that the chosen cut is the best one: trains with every possible cut of five models, and compares
//! the fastest with `plan`'s choice from a profile, with equal numbers of layers and with equal parameters.
//! See `benches/README.md`.
//!
//! Names of models as arguments select some of them; `--all` prints every cut, with the step time that the
//! profile predicts.

mod profile_support;

use gpipe::partitioner::{Partition, Plan, ScheduleKind, simulate};
use gpipe::tch::Device;
use gpipe::{Pipeline, profile::Profiled};
use profile_support::{Measured, Runner, SUBJECTS, Subject, stage_costs};

const SCHEDULE: ScheduleKind = ScheduleKind::OneFOneB;
const MICROS: usize = 4;
/// Warm-up steps of a pipeline: it allocates memory during the first few, and a step that does so is late.
const SETTLING: usize = 2;
/// Pipelines per cut, in turn with the others', to find the candidates for a closer look.
const ROUNDS: usize = 3;
/// The fastest cuts, which are measured again in turn.
const FINALISTS: usize = 5;
const FINAL_ROUNDS: usize = 15;
/// Measured steps of each pipeline.
const STEPS: usize = 4;
/// The chosen cut may take this much longer than the best.
const LIMIT: f64 = 1.03;

struct Cut {
    balance: Vec<usize>,
    measured: Measured,
}

impl Cut {
    /// Trains with a fresh pipeline: its placement in memory can make each step a tenth longer, independent
    /// of the cut.
    fn run(&mut self, subject: &Subject, steps: usize) -> anyhow::Result<()> {
        let devices = vec![Device::Cpu; self.balance.len()];
        let pipe = Pipeline::builder(subject.spec.build())
            .devices(&devices)
            .micro_batches(MICROS)
            .schedule(SCHEDULE)
            .balance(&self.balance)
            .build()?;
        let mut runner = Runner::new(pipe);
        runner.run(subject, SETTLING)?;
        runner.measured = Measured::default();
        runner.run(subject, steps)?;
        self.measured.add(runner.measured);
        Ok(())
    }
}

/// Every way to give `layers` layers to `stages` stages.
fn balances(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=layers + 1 - stages;
    first
        .flat_map(|first| {
            let rest = balances(layers - first, stages - 1).into_iter();
            rest.map(move |rest| [vec![first], rest].concat())
        })
        .collect()
}

/// Prints each cut's time in order of the measurements, with the predicted one.
fn print_all(cuts: &[Cut], plan: &Plan, profiled: &Profiled) -> anyhow::Result<()> {
    for cut in cuts {
        let mut plan = plan.clone();
        let layers = cut.balance.iter().sum();
        plan.partition = Partition::from_balance(layers, &cut.balance)?;
        let costs = stage_costs(&plan, profiled, cut.balance.len())?;
        let predicted = simulate(&plan.generate()?, &costs).makespan().get();
        let (measured, balance) = (cut.measured.median(), format!("{:?}", cut.balance));
        println!(
            "       {balance:12}  measured {:7.2} ms  predicted {:7.2} ms  {:.3}",
            measured / 1e3,
            predicted / 1e3,
            predicted / measured
        );
    }
    Ok(())
}

fn train(subject: &Subject, cuts: &mut [Cut], rounds: usize) -> anyhow::Result<()> {
    for cut in cuts.iter_mut() {
        cut.measured = Measured::default();
    }
    for _ in 0..rounds {
        for cut in cuts.iter_mut() {
            cut.run(subject, STEPS)?;
        }
    }
    cuts.sort_by(|a, b| a.measured.median().total_cmp(&b.measured.median()));
    Ok(())
}

/// Whether the chosen cut is within the limit.
fn compare(subject: &Subject, stages: usize, measured: bool) -> anyhow::Result<bool> {
    let model = subject.spec.build();
    let profiled = subject.profile(stages, &[MICROS, 2 * MICROS])?;
    let plan = subject.plan(&profiled, stages, SCHEDULE, MICROS)?;
    let chosen = plan.partition.balance();
    let by_layers = Partition::uniform(model.len(), stages)?.balance();
    let by_parameters = Partition::by_weight(&model.parameter_bytes()?, stages)?.balance();
    let all = balances(model.len(), stages);
    let (count, rounds) = (
        all.len(),
        if measured {
            (ROUNDS, FINAL_ROUNDS)
        } else {
            (1, 1)
        },
    );
    let mut cuts: Vec<Cut> = all
        .into_iter()
        .map(|balance| Cut {
            balance,
            measured: Measured::default(),
        })
        .collect();
    train(subject, &mut cuts, rounds.0)?;
    if std::env::args().any(|argument| argument == "--all") {
        print_all(&cuts, &plan, &profiled)?;
    }
    let mut place = 0;
    cuts.retain(|cut| {
        place += 1;
        place <= FINALISTS || [&chosen, &by_layers, &by_parameters].contains(&&cut.balance)
    });
    train(subject, &mut cuts, rounds.1)?;
    let median = |balance: &[usize]| {
        let found = cuts.iter().find(|cut| cut.balance == balance);
        found.map_or(f64::NAN, |cut| cut.measured.median())
    };
    let (own, best) = (median(&chosen), cuts[0].measured.median());
    println!(
        "{:5}  {count:3} cuts  best {:10} {:7.2} ms  chosen {:10} {:.3}  equal layers {:10} {:.3}  equal parameters {:10} {:.3}{}",
        subject.spec.name(),
        format!("{:?}", cuts[0].balance),
        best / 1e3,
        format!("{chosen:?}"),
        own / best,
        format!("{by_layers:?}"),
        median(&by_layers) / best,
        format!("{by_parameters:?}"),
        median(&by_parameters) / best,
        if own > LIMIT * best { "  <-- off" } else { "" },
    );
    Ok(own <= LIMIT * best)
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let names: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    println!("{SCHEDULE}, {MICROS} micro-batches; medians over that of the best cut\n");
    let mut kept = true;
    for (name, sizes, batch) in SUBJECTS {
        if !names.is_empty() && !names.iter().any(|own| *own == name) {
            continue;
        }
        let batch = if measured { batch } else { 8 };
        let subject = Subject::new(name, sizes, batch)?;
        for stages in 2..=if name == "mlp" { 3 } else { 2 } {
            kept &= compare(&subject, stages, measured)?;
        }
    }
    anyhow::ensure!(
        kept || !measured,
        "a chosen cut takes more than {:.0} % longer than the best one",
        100.0 * (LIMIT - 1.0)
    );
    Ok(())
}
