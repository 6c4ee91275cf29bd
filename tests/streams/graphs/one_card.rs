//! Several stages on one device.

use gpipe::partitioner::ScheduleKind;
use gpipe::torch::streams::Recorder;

use super::setup::{Pair, Setup, WARM_UP};
use crate::support::{models, single_threaded};

/// Regression test: while one stage captured, the others continued. The allocator drops the notes that it
/// gets during a capture when this ends (it attributes all of them to the capture), so their memory was
/// reused while they still read it.
#[test]
fn nobody_tells_a_device_anything_while_a_graph_is_captured_on_it() {
    single_threaded();
    let model = models::transformer(0.0);
    for schedule in [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ] {
        let setup = Setup {
            stages: 4,
            micro_batches: 8,
            schedule,
        };
        let case = schedule.to_string();
        let recorder = Recorder::new(&[Some(0); 4]);
        let mut pair = Pair::recorded(recorder, || setup.builder(model.sequential()));
        let batch = (model.batch)(8);
        for _ in 0..WARM_UP + 2 {
            pair.step(&batch, || model.loss, &case);
        }
        let uses = pair.finish(&case);
        assert!(uses.iter().all(|used| used.eager.is_none()), "{uses:?}");
    }
}
