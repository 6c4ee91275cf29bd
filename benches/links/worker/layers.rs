//! Stages that compute: linear layers, trained by a pipeline.

use std::sync::Arc;
use std::time::Instant;

use gpipe::partitioner::VOTES;
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::world::World;
use gpipe::{Optimizer, Pipeline, Sequential};

use super::{Measured, Steps, WARMING, measured_link, simulated};

const WIDTH: i64 = 1024;
const LAYERS: usize = 8;

pub fn run(world: &Arc<World>, steps: &Steps) -> anyhow::Result<()> {
    let (link, line) = measured_link(world)?;
    let model = Sequential::new().layers("linear", LAYERS, |path, _| {
        nn::linear(path, WIDTH, WIDTH, nn::LinearConfig::default())
    });
    let mut pipe = Pipeline::builder(model)
        .devices(&[Device::Cpu])
        .world(world)
        .balance(&[LAYERS / 2; 2])
        .schedule(steps.kind()?)
        .micro_batches(steps.micro_batches)
        .threads_per_stage(1)
        .build()?;
    let mut optimizer = Optimizer::new(gpipe::optim::Sgd::default());
    let rows = steps.bytes as i64 / 4 / WIDTH * steps.micro_batches as i64;
    let data = Tensor::ones([rows, WIDTH], (Kind::Float, Device::Cpu)) * 0.01;
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let schedule = pipe.schedule()?;
    let mut measured = Measured::default();
    for step in 0..WARMING + steps.measured {
        let begin = Instant::now();
        let report = pipe.train_step(&data, &data, loss)?;
        optimizer.step(&mut pipe)?;
        let call = begin.elapsed().as_secs_f64();
        steps.pause();
        if step >= WARMING {
            let timeline = &report.read()?.timeline;
            let bytes = rows as usize / steps.micro_batches * WIDTH as usize * 4;
            let costs = timeline.stage_costs(2);
            let expected = simulated(&schedule, costs, (link, bytes), VOTES)?;
            measured.add((timeline.makespan().get() / 1e3, call * 1e3), expected);
        }
    }
    measured.tell(world, &line)
}
