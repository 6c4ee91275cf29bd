//! Runs a test in a separate process, for tests of process-wide state: libtorch's random numbers, the number
//! of its threads.

use std::env;
use std::process::Command;

/// Set in such a process to the name of its test.
const CHILD: &str = "GPIPE_TEST_APART";

/// Runs `body`, the body of the test with this full name, without concurrent tests.
#[track_caller]
pub(crate) fn apart(test: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some_and(|name| name == test) {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains("1 passed"), "no test `{test}`: {printed}");
}
