//! Schedules in the CSV format of PyTorch's pipelining.

use gpipe_partitioner::{CsvError, CsvFormat, MicroId, Schedule, ScheduleKind, Shape, StageId};
use proptest::prelude::*;

fn checked(
    p: usize,
    m: usize,
    v: usize,
    kind: ScheduleKind,
) -> Option<gpipe_partitioner::CheckedSchedule> {
    kind.generate(Shape::new(p, m).with_chunks(v)).ok()
}

#[test]
fn computation_is_written_one_row_a_device() {
    let csv = checked(2, 2, 1, ScheduleKind::ZbH1)
        .unwrap()
        .to_csv(CsvFormat::Compute);
    assert_eq!(csv, "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
}

#[test]
fn communication_stands_where_it_is_needed() {
    let csv = checked(2, 1, 1, ScheduleKind::OneFOneB)
        .unwrap()
        .to_csv(CsvFormat::ComputeAndCommunication);
    assert_eq!(
        csv,
        "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    );
    // Neighbouring chunks on one device need no communication.
    let csv = checked(1, 1, 2, ScheduleKind::Zbv)
        .unwrap()
        .to_csv(CsvFormat::ComputeAndCommunication);
    assert!(!csv.contains("SEND") && !csv.contains("RECV"));
}

#[test]
fn what_we_do_not_run_is_accepted_where_its_meaning_is_plain() {
    let text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\r\n\"1RECV_F0\", 1F0 ,1B0,1SEND_B0,,\r\n";
    let schedule = Schedule::from_csv("imported", text).unwrap();
    assert_eq!(schedule.to_csv(), "0F0,0B0\n1F0,1B0\n");
    schedule.check().unwrap();
}

#[test]
fn an_overlap_is_kept_as_a_pair_and_done_in_order() {
    let text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n";
    let schedule = Schedule::from_csv("imported", text).unwrap();
    assert_eq!(schedule.to_csv(), text);
    let actions: Vec<String> = schedule
        .actions(gpipe_partitioner::DeviceId(0))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(actions.join(" "), "0F0 0F1 0F2 0B0 0B1 0B2");
    schedule.check().unwrap();
    let csv = checked(2, 4, 2, ScheduleKind::DualPipeV)
        .unwrap()
        .to_csv(CsvFormat::Compute);
    assert!(csv.contains(")OVERLAP_F_B"), "{csv}");
}

#[test]
fn errors_name_row_cell_and_rule() {
    let message = |text: &str| Schedule::from_csv("x", text).unwrap_err().to_string();
    assert!(message("0F0\n1F0,1X0").starts_with("row 2, cell 2: `1X0` is no action"));
    assert!(
        message("0F1000000000000000000")
            .starts_with("row 1, cell 1: `0F1000000000000000000` is too large")
    );
    assert!(message("99999999F0").contains("at most 65536 stages"));
    assert!(message("65535F0,0F67000000").contains("stages times micro-batches at most 4194304"));
    assert!(message("0OVERLAP_F_B").contains("names its actions in brackets"));
    assert!(message("(0F1;0B0)SOMETHING").contains("only OVERLAP_F_B is known"));
    assert_eq!(Schedule::from_csv("x", ",,\n"), Err(CsvError::Empty));
    for bad in [
        "(0F0",
        "F",
        "0F",
        "0SEND_F",
        "-1F0",
        "0F-1",
        "(0F0;(0B0))OVERLAP_F_B",
        "0É0",
        "0F0x",
    ] {
        assert!(Schedule::from_csv("x", bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn both_formats_round_trip(p in 1usize..6, m in 1usize..9, v in 1usize..4, k in 0..ScheduleKind::ALL.len()) {
        let kind = ScheduleKind::ALL[k];
        if let Some(schedule) = checked(p, m, v, kind) {
            for format in [CsvFormat::Compute, CsvFormat::ComputeAndCommunication] {
                let read = Schedule::from_csv(schedule.schedule().name(), &schedule.to_csv(format)).unwrap();
                prop_assert_eq!(&read, schedule.schedule());
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9FBIWR,;()_\\nSENDOVERLAP\"é ]{0,200}") {
        if let Ok(schedule) = Schedule::from_csv("x", &text) {
            let again = Schedule::from_csv("x", &schedule.to_csv());
            let _ = schedule.check();
            prop_assert!(again.is_ok());
        }
    }

    #[test]
    fn any_actions_round_trip(actions in proptest::collection::vec((0usize..50, 0usize..5, 0usize..50), 1..60)) {
        let cell = |&(s, k, i): &(usize, usize, usize)| format!("{s}{}{i}", ['F', 'B', 'I', 'W', 'R'][k]);
        let text = actions.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
        prop_assert_eq!(Schedule::from_csv("x", &text).unwrap().to_csv(), text);
    }
}

#[test]
fn what_is_offloaded_is_written_behind_its_forward_and_read_back() {
    let text = "0F0,0OFFLOAD0,0F1,0I0,0W0,0B1\n1F0,1F1,1B0,1B1\n";
    let schedule = Schedule::from_csv("test", text).unwrap();
    let own: Vec<_> = schedule.offloads().iter().copied().collect();
    assert_eq!(own, [(StageId(0), MicroId(0))]);
    assert_eq!(schedule.to_csv(), text);
    schedule.check().unwrap();
    let pair = "0F0,0OFFLOAD0,(0F1;0B0)OVERLAP_F_B,0OFFLOAD1,0B1\n";
    let schedule = Schedule::from_csv("test", pair).unwrap();
    assert_eq!(
        (schedule.offloads().len(), schedule.to_csv()),
        (2, pair.to_owned())
    );
    for wrong in [
        "0F0,0OFFLOAD,0B0\n",
        "OFFLOAD0,0F0,0B0\n",
        "(0F0;0OFFLOAD0)OVERLAP_F_B,0B0\n",
    ] {
        assert!(Schedule::from_csv("test", wrong).is_err(), "{wrong}");
    }
}
