//! Training goes where it goes in eager PyTorch, over any number of stages and by any schedule.

use gpipe::partitioner::ScheduleKind;
use gpipe::{AdamW, Optimizer};

use crate::fixture::{ALL, Fixture, are_of_this_machine};
use crate::support::single_threaded;

const SCHEDULES: [ScheduleKind; 4] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::Zbv,
];

/// As the fixtures' script has it.
const UPDATES: usize = 20;

/// Each number of stages with another schedule, and over all models each with each.
#[test]
fn twenty_updates_come_to_what_eager_comes_to() {
    single_threaded();
    let all = ALL.into_iter().filter(|name| *name != "dropout");
    for (number, name) in all.enumerate() {
        let fixture = Fixture::open(name);
        let told = fixture.all("updated.");
        let losses = Vec::<f32>::try_from(fixture.told("losses")).unwrap();
        assert_eq!((losses.len(), told.is_empty()), (UPDATES, false), "{name}");
        for stages in 1..=4 {
            let schedule = SCHEDULES[(number + stages) % SCHEDULES.len()];
            let what = format!("{name}, {stages} devices, {schedule}");
            let chunks = if schedule == ScheduleKind::Zbv { 2 } else { 1 };
            // A V has two stages on each device.
            let devices = stages.min(fixture.model().len() / chunks);
            let builder = fixture.builder(devices).schedule(schedule);
            let mut pipe = builder.build().unwrap();
            let mut optimizer = Optimizer::new(AdamW {
                lr: 1e-3,
                eps: 1e-4,
                weight_decay: 0.01,
                ..AdamW::default()
            });
            for told in &losses {
                let told = f64::from(*told);
                let own = fixture.step(&mut pipe);
                let near = (own - told).abs() <= 2e-6 * told.abs().max(1.0);
                assert!(near, "{what}: loss {own}, {told}");
                optimizer.step(&mut pipe).unwrap();
            }
            let own = pipe.parameters().unwrap();
            // Other processors round otherwise, and twenty updates add that up.
            let most = if are_of_this_machine() { 1e-6 } else { 1e-5 };
            for (parameter, tensor) in own {
                let Some((_, told)) = told.iter().find(|(told, _)| *told == parameter) else {
                    panic!("{what}: eager has no `{parameter}`");
                };
                let apart = (tensor - told).abs().max().double_value(&[]);
                assert!(apart <= most, "{what}: `{parameter}` differs by {apart}");
            }
        }
    }
}
