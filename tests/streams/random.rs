//! Random schedules, placements and times.

use gpipe::partitioner::ScheduleKind;
use gpipe::settings::Recompute;
use proptest::prelude::*;

use crate::setup::Setup;
use crate::support::models;

fn setups() -> impl Strategy<Value = Setup> {
    let place = prop_oneof![Just(None), Just(Some(0)), Just(Some(1)), Just(Some(2))];
    let recompute = prop_oneof![
        Just(Recompute::Never),
        Just(Recompute::ExceptLast),
        Just(Recompute::Always)
    ];
    (
        0..ScheduleKind::ALL.len(),
        prop::collection::vec(place, 1..=4),
        1_usize..=3,
        1_usize..=6,
        recompute,
    )
        .prop_map(|(kind, places, chunks, micro_batches, recompute)| Setup {
            schedule: ScheduleKind::ALL[kind],
            chunks,
            micro_batches,
            recompute,
            places,
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn order_holds_whatever_the_schedule_and_the_times(
        setup in setups(),
        skips in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let model = if skips { models::unet() } else { models::mlp() };
        prop_assume!(setup.exists(model.parts.len()));
        let (recorder, _) = setup.recorded(&model);
        let checked = recorder.check();
        prop_assert!(checked.is_ok(), "{setup:?}: {checked:?}");
        for turn in 0..8 {
            let played = recorder.play(seed.wrapping_add(turn));
            prop_assert!(played.is_ok(), "{setup:?}: {played:?}");
        }
    }
}
