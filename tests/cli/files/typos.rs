//! A misspelt flag is answered with the right one.

use std::path::Path;

use super::gpipe;

#[test]
fn a_misspelt_flag_is_answered_with_the_nearest() {
    let verbs = [
        "profile --model mlp",
        "plan --profile profile.json",
        "simulate --schedule 1f1b",
        "train",
    ];
    for verb in verbs {
        for (wrong, right) in [("--devcies", "--devices"), ("--mico", "--micro")] {
            let output = gpipe(Path::new("."), &format!("{verb} {wrong} 2"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb} {wrong}: {errors}");
            assert!(output.stdout.is_empty());
            assert!(errors.contains(&format!("'{wrong}'")), "{verb}: {errors}");
            let tip = format!("similar argument exists: '{right}'");
            assert!(errors.contains(&tip), "{verb} {wrong}: {errors}");
        }
    }
}

#[test]
fn a_misspelt_verb_is_answered_with_the_nearest() {
    for (wrong, right) in [
        ("profle", "profile"),
        ("plna", "plan"),
        ("simulat", "simulate"),
    ] {
        let output = gpipe(Path::new("."), wrong);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(&format!("'{right}'")), "{wrong}: {errors}");
    }
}
