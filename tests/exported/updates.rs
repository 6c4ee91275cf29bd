//! Training equals that in eager PyTorch, over any number of stages and with any schedule.

use gpipe::partitioner::ScheduleKind;
use gpipe::{Optimizer, optim::AdamW};

use crate::fixture::{DRAWS, Fixture, are_of_this_machine, every};
use crate::grid::{DEVICES, SCHEDULES, stages};
use crate::support::single_threaded;

/// As in the fixtures' script.
const UPDATES: usize = 20;

/// Combinations for a model of `layers` layers. With numbers from this machine: each number of devices with
/// each schedule; otherwise each number of devices with one of them, rotating over the models: the grid
/// compares the bits of all.
fn combinations(number: usize, layers: usize) -> Vec<(usize, ScheduleKind)> {
    let fits = |devices: usize| {
        let turned = (0..4).map(move |turn| SCHEDULES[(number + devices + turn) % 4]);
        turned.filter(move |own| stages(*own, devices) <= layers)
    };
    let most = if are_of_this_machine() { 4 } else { 1 };
    DEVICES
        .flat_map(|devices| fits(devices).take(most).map(move |own| (devices, own)))
        .collect()
}

fn assert_updates(fixture: &Fixture, (devices, schedule): (usize, ScheduleKind)) {
    let told = fixture.all("updated.");
    let losses = Vec::<f32>::try_from(fixture.told("losses")).unwrap();
    let what = format!("{}, {devices} devices, {schedule}", fixture.name);
    assert_eq!((losses.len(), told.is_empty()), (UPDATES, false), "{what}");
    let mut pipe = fixture.builder(devices).schedule(schedule).build().unwrap();
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
    // Other processors round differently, which adds up over twenty updates.
    let most = if are_of_this_machine() { 1e-6 } else { 1e-5 };
    let own = pipe.parameters().unwrap();
    // Eager's results leave out untrained parameters.
    for (parameter, told) in told {
        let Some((_, tensor)) = own.iter().find(|(own, _)| *own == parameter) else {
            panic!("{what}: there is no `{parameter}`");
        };
        let apart = (tensor - told).abs().max().double_value(&[]);
        assert!(apart <= most, "{what}: `{parameter}` differs by {apart}");
    }
}

#[test]
fn twenty_updates_come_to_what_eager_comes_to() {
    single_threaded();
    for (number, name) in every().filter(|name| *name != DRAWS).enumerate() {
        let fixture = Fixture::open(name);
        let all = combinations(number, fixture.model().len());
        let devices: Vec<usize> = all.iter().map(|own| own.0).collect();
        let all_devices = { DEVICES }.all(|own| devices.contains(&own));
        assert!(all_devices, "{name}: {devices:?}");
        for combination in all {
            assert_updates(&fixture, combination);
        }
    }
}
