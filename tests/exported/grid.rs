//! Every program on 1 to 4 devices with every schedule: the results of eager PyTorch, with the same bits
//! everywhere.
//!
//! One device under GPipe is compared with eager, everything else bit for bit with that.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{Optimizer, Pipeline, optim::AdamW, settings::Recompute};

use crate::fixture::{DRAWS, Fixture, assert_as_told, assert_near, every};
use crate::support::{assert_same_bits, gradients, single_threaded, snapshot};

/// Schedules for each number of devices.
pub(crate) const SCHEDULES: [ScheduleKind; 4] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::Zbv,
];

pub(crate) const DEVICES: std::ops::RangeInclusive<usize> = 1..=4;

/// Stages of a schedule: a V has two on each device.
pub(crate) fn stages(schedule: ScheduleKind, devices: usize) -> usize {
    devices * if schedule == ScheduleKind::Zbv { 2 } else { 1 }
}

/// Programs with too few layers for some of the 16 combinations, and the number of these: only those of a V
/// on three or four devices.
const TOO_FEW_LAYERS: [(&str, usize); 18] = [
    ("conformer", 1),
    ("decoder", 1),
    ("dropout", 2),
    ("encoder", 1),
    ("frames", 2),
    ("gpt", 1),
    ("grouped", 2),
    ("lengths", 2),
    ("lstm", 2),
    ("mixture", 1),
    ("mlp", 2),
    ("mobilenet", 2),
    ("resnet", 1),
    ("seq2seq", 1),
    ("unet", 1),
    ("vit", 1),
    ("judged", 2),
    ("fixed", 2),
];

/// Parameters that are used in several places: each place accumulates its own gradient over the
/// micro-batches, where eager adds them micro-batch by micro-batch.
const OTHER_ORDER: [(&str, &str); 2] = [("decoder", "embed.weight"), ("judged", "second.weight")];

/// Numbers of two steps with an update between them.
struct Numbers {
    losses: [f64; 2],
    outputs: [Tensor; 2],
    /// Gradients of the first step.
    gradients: Vec<(String, Tensor)>,
    /// Final parameters and buffers.
    after: Vec<(String, Tensor)>,
}

impl Numbers {
    fn of(fixture: &Fixture, mut pipe: Pipeline) -> Self {
        let mut optimizer = Optimizer::new(AdamW::default());
        let (first, output) = fixture.step_with_output(&mut pipe);
        let own = gradients(&mut pipe).into_iter();
        let gradients = own.map(|(name, own)| (name, own.copy())).collect();
        optimizer.step(&mut pipe).unwrap();
        let (second, then) = fixture.step_with_output(&mut pipe);
        optimizer.step(&mut pipe).unwrap();
        Self {
            losses: [first, second],
            outputs: [output, then],
            gradients,
            after: snapshot(&mut pipe),
        }
    }

    #[track_caller]
    fn assert_same(&self, other: &Self, what: &str) {
        assert_eq!(self.losses, other.losses, "{what}: losses");
        for (own, other) in self.outputs.iter().zip(&other.outputs) {
            assert!(own.equal(other), "{what}: the output");
        }
        assert_same_bits(
            &self.gradients,
            &other.gradients,
            &format!("{what}: gradients"),
        );
        assert_same_bits(
            &self.after,
            &other.after,
            &format!("{what}: after two updates"),
        );
    }

    /// Checks that the first step equals eager's, except for random draws.
    #[track_caller]
    fn assert_is_that_of_eager(&self, fixture: &Fixture) {
        let (name, loss) = (&fixture.name, self.losses[0]);
        if name == DRAWS {
            return;
        }
        let told = fixture.told("loss").double_value(&[0]);
        assert!(
            (loss - told).abs() <= 1e-6 * told,
            "{name}: {loss}, not {told}"
        );
        assert_as_told(
            &self.outputs[0],
            fixture.told("out"),
            &format!("{name}: the output"),
        );
        let told = fixture.all("grad.");
        let names = |all: &[(String, Tensor)]| -> Vec<String> {
            all.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&self.gradients), names(&told), "{name}");
        for ((parameter, own), (_, told)) in self.gradients.iter().zip(&told) {
            let what = format!("{name}: the gradient of {parameter}");
            if OTHER_ORDER.contains(&(name, parameter)) {
                assert_near(own, told, &what);
            } else {
                assert_as_told(own, told, &what);
            }
        }
    }
}

#[test]
fn every_program_computes_the_same_bits_on_any_number_of_devices_by_any_schedule() {
    single_threaded();
    let mut compared = 0;
    let mut too_few = Vec::new();
    for (number, name) in every().enumerate() {
        let fixture = Fixture::open(name);
        let plain = Numbers::of(&fixture, fixture.builder(1).build().unwrap());
        plain.assert_is_that_of_eager(&fixture);
        let (layers, mut skipped) = (fixture.model().len(), 0);
        for devices in DEVICES {
            for (place, schedule) in SCHEDULES.into_iter().enumerate() {
                if stages(schedule, devices) > layers {
                    skipped += 1;
                    continue;
                }
                // Each combination recomputes some of the programs, each program in half of the combinations.
                let recompute = if (number + devices + place).is_multiple_of(2) {
                    Recompute::Always
                } else {
                    Recompute::Never
                };
                let what = format!("{name}, {devices} devices, {schedule}, recompute {recompute}");
                let pipe = fixture.builder(devices).schedule(schedule);
                let pipe = pipe.recompute(recompute).build().unwrap();
                Numbers::of(&fixture, pipe).assert_same(&plain, &what);
                compared += 1;
            }
        }
        if skipped > 0 {
            too_few.push((name, skipped));
        }
    }
    assert_eq!(too_few, TOO_FEW_LAYERS);
    let skipped: usize = TOO_FEW_LAYERS.iter().map(|(_, count)| count).sum();
    assert_eq!(compared + skipped, every().count() * 4 * SCHEDULES.len());
}
