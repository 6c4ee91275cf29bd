//! A custom schedule: 1F1B that runs further ahead, so that a slow link delays no stage. Run with `cargo run
//! --release --example custom_schedule`.

use gpipe::partitioner::{
    Action, ActionKind, CheckError, CheckedSchedule, Costs, Micros, Schedule, ScheduleKind, Shape,
    render, simulate,
};
use gpipe::tch::{Device, Kind as Type, Reduction, Tensor, nn};
use gpipe::{Pipeline, Sequential};

/// Stage s of p runs 2(p − s) − 1 forwards ahead, where 1F1B runs p − s.
fn eager(p: usize, m: usize) -> Result<CheckedSchedule, CheckError> {
    let device = |stage: usize| {
        let ahead = (2 * (p - stage) - 1).min(m);
        let forward = |micro| Action::new(stage, ActionKind::Forward, micro);
        let backward = |micro| Action::new(stage, ActionKind::Backward, micro);
        let mut list: Vec<Action> = (0..ahead).map(forward).collect();
        list.extend((ahead..m).flat_map(|micro| [backward(micro - ahead), forward(micro)]));
        list.extend((m - ahead..m).map(backward));
        list
    };
    Schedule::new("eager-1f1b", p, m, (0..p).map(device).collect()).check()
}

fn main() -> anyhow::Result<()> {
    let (p, m) = (3, 8);
    let ms = Micros::new(1000.0)?;
    // A transfer takes as long as a forward.
    let costs = Costs::uniform(p, ms, ms, ms).with_transfer(Micros::ZERO, ms);
    for schedule in [
        ScheduleKind::OneFOneB.generate(Shape::new(p, m))?,
        eager(p, m)?,
    ] {
        println!("{}:", schedule.schedule().name());
        let timeline = simulate(&schedule, &costs).timeline;
        println!("{}", render::text(&timeline, 100));
    }

    let model = Sequential::new().layers("hidden", 6, |p, _| {
        nn::linear(p, 64, 64, nn::LinearConfig::default())
    });
    let mut pipe = Pipeline::builder(model)
        .devices(&[Device::Cpu; 3])
        .custom_schedule(eager(p, m)?)
        .build()?;
    let x = Tensor::rand([64, 64], (Type::Float, Device::Cpu));
    let step = pipe.train_step(&x, &x, |out: &Tensor, y: &Tensor| {
        out.mse_loss(y, Reduction::Mean)
    })?;
    println!(
        "a step on three CPU stages: {}",
        step.read()?.timeline.makespan()
    );
    Ok(())
}
