//! Checks that the checks find missing synchronization.

use gpipe::partitioner::ScheduleKind;
use gpipe::settings::Recompute;
use gpipe::torch::streams::Recorder;

use crate::setup::Setup;
use crate::support::models;

fn recorded(places: &[Option<usize>]) -> Recorder {
    let setup = Setup {
        schedule: ScheduleKind::OneFOneB,
        chunks: 1,
        micro_batches: 4,
        recompute: Recompute::Never,
        places: places.to_vec(),
    };
    setup.recorded(&models::mlp()).0
}

/// Counts the single synchronization operations that can be left out, those whose omission the check finds,
/// and those that a few simulated clocks alone find.
fn left_out(recorder: &Recorder) -> (usize, usize, usize) {
    let (mut all, mut found, mut played) = (0, 0, 0);
    while let Some(broken) = recorder.without(all) {
        all += 1;
        let wrong = broken.check().is_err();
        found += usize::from(wrong);
        if (0..4).any(|seed| broken.play(seed).is_err()) {
            played += 1;
            assert!(
                wrong,
                "a clock finds what the check for all clocks does not"
            );
        }
    }
    (all, found, played)
}

#[test]
fn what_keeps_order_cannot_be_left_out() {
    for places in [
        vec![Some(0), Some(1)],
        vec![Some(0), Some(0)],
        vec![Some(0), None],
    ] {
        let recorder = recorded(&places);
        recorder.check().unwrap();
        let (all, found, played) = left_out(&recorder);
        assert!(all > 50, "{places:?}: {all}");
        // The rest is needed only under other schedules: a wait that an earlier wait covers, a note for
        // memory that outlives its use.
        assert!(found * 3 >= all, "{places:?}: {found} of {all}");
        assert!(played > 0, "{places:?}: {played} of {all}");
    }
}

#[test]
fn a_recorder_stands_in_for_cpu_devices_one_place_each() {
    let recorder = Recorder::new(&[Some(0)]);
    let model = models::mlp();
    let built = gpipe::Pipeline::builder(model.sequential())
        .devices(&crate::support::cpus(2))
        .record_streams(&recorder)
        .build();
    let message = built.unwrap_err().to_string();
    assert!(message.contains("1 places for 2 devices"), "{message}");
    assert!(recorder.is_empty());
}
