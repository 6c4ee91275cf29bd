//! Tests of `make peers` that need no peers.

use std::path::Path;
use std::process::Command;

/// Regression test: workers of gloo and DeepSpeed poll while they wait, so on an idle machine each row waited
/// 14 minutes for them to be quiet.
#[test]
fn idle_workers_take_no_time_from_those_that_are_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("benches/peers/test_group.py");
    let run = Command::new("python3").arg(&script).output();
    let Ok(run) = run else {
        println!("NOT CHECKED: there is no python3");
        return;
    };
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}");
    assert!(told.contains("Ran 3 tests"), "{told}");
}
