//! The CSVs in `pytorch_csv`, written by PyTorch's own pipelining (see `make.py`
//! there), are read, checked and written back.

use std::fs;
use std::path::Path;

use gpipe_partitioner::{CsvFormat, Schedule};

fn read(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch_csv");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Removes the empty cells, which stand for waits.
fn without_gaps(csv: &str) -> String {
    let row = |line: &str| {
        let cells: Vec<_> = line
            .trim_end()
            .split(',')
            .filter(|cell| !cell.is_empty())
            .collect();
        cells.join(",") + "\n"
    };
    csv.lines().map(row).collect()
}

#[test]
fn what_pytorch_writes_is_read_checked_and_written_back() {
    let cases = [
        "Interleaved1F1B-p2-m4",
        "Interleaved1F1B-p4-m8",
        "LoopedBFS-p4-m4",
        "InterleavedZeroBubble-p2-m4",
        "InterleavedZeroBubble-p4-m8",
        "ZBVZeroBubble-p2-m4",
        "ZBVZeroBubble-p4-m8",
        "DualPipeV-p2-m4",
        "DualPipeV-p4-m8",
    ];
    for name in cases {
        let plain = read(&format!("{name}-compute_only.csv"));
        let schedule = Schedule::from_csv(name, &plain).unwrap();
        assert_eq!(schedule.to_csv(), without_gaps(&plain), "{name}");
        let checked = schedule
            .check()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        // Its looped breadth-first schedule runs the backwards from the last micro-batch on.
        let in_order = !name.starts_with("LoopedBFS");
        assert_eq!(checked.accumulates_in_order(), in_order, "{name}");

        // With communication it is the same schedule; PyTorch's lowering may reorder independent
        // actions, so the counts are compared.
        let lowered = read(&format!("{name}-compute_comms.csv"));
        let lowered = Schedule::from_csv(name, &lowered).unwrap();
        lowered
            .clone()
            .check()
            .unwrap_or_else(|error| panic!("{name}, lowered: {error}"));
        let actions =
            |schedule: &Schedule| schedule.iter().map(|(_, row)| row.len()).sum::<usize>();
        assert_eq!(actions(&lowered), actions(checked.schedule()), "{name}");

        // Our own CSV with communication is read back unchanged.
        let own = checked.to_csv(CsvFormat::ComputeAndCommunication);
        let back = Schedule::from_csv(name, &own).unwrap();
        assert_eq!(back.to_csv(), checked.to_csv(CsvFormat::Compute), "{name}");
    }
}
