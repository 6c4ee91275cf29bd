//! The end of the command's process, shown with a library that is destroyed last.

use std::process::Command;

use super::cuda_at_start::compile;

const LIBRARY: &str = "#include <stdio.h>
#include <stdlib.h>
__attribute__((destructor)) static void tidied(void) { fclose(fopen(getenv(\"TIDIED\"), \"w\")); }";

/// Regression test: libtorch unregistered its operators one by one, which took half the time of a short
/// command.
#[test]
fn nothing_is_tidied_up_that_the_kernel_takes_back_and_words_and_code_are_there() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "last.so", LIBRARY);
    let tidied = folder.path().join("tidied");
    let run = |args: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
            .args(args.split_whitespace())
            .current_dir(folder.path())
            .env("LD_PRELOAD", folder.path().join("last.so"))
            .env("TIDIED", &tidied)
            .output()
            .unwrap();
        assert!(!tidied.exists(), "{args}");
        (
            done.status.code(),
            String::from_utf8(done.stdout).unwrap(),
            String::from_utf8(done.stderr).unwrap(),
        )
    };
    let (code, told, _) = run("schedule show --schedule gpipe --devices 1 --micro 1");
    // No newline, which alone would flush it.
    assert_eq!((code, told.trim()), (Some(0), "F0 B0 B0"));
    std::fs::write(folder.path().join("half.csv"), "0F0,0B0\n1F0\n").unwrap();
    let (code, _, why) = run("schedule check half.csv");
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("1B0 is missing"), "{why}");
    let (code, _, why) = run("plan --profile none.json --devices 2");
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("none.json"), "{why}");
}
