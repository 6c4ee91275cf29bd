//! `gpipe-rs schedule`.

use std::fs;

use serde_json::Value;

use super::{gpipe, gpipe_in, refused, stdout};

#[test]
fn schedules_travel_as_csv() {
    let folder = tempfile::tempdir().unwrap();
    for schedule in ["1f1b", "interleaved-1f1b", "zbv", "dualpipe-v"] {
        let source = ["--schedule", schedule, "--devices", "2", "--micro", "6"];
        let export = |flags: &[&str]| {
            stdout(&gpipe_in(
                folder.path(),
                &[&["schedule", "export"], &source[..], flags].concat(),
            ))
        };
        let plain = export(&[]);
        assert_eq!(plain.lines().count(), 2);
        assert_eq!(export(&["--communication", "-o", "all.csv"]), "");
        assert!(
            fs::read_to_string(folder.path().join("all.csv"))
                .unwrap()
                .contains("SEND_F0")
        );
        let imported = stdout(&gpipe_in(folder.path(), &["schedule", "import", "all.csv"]));
        assert_eq!(imported, plain, "{schedule}");
        let check = ["schedule", "check", "all.csv", "--json"];
        let facts: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &check))).unwrap();
        assert_eq!(facts["legal"], true);
        assert_eq!(facts["micro_batches"], 6);
        let lists = ["schedule", "import", "all.csv", "--json"];
        let lists: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &lists))).unwrap();
        assert_eq!(lists["actions"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn an_illegal_schedule_fails_the_check_with_the_action() {
    let folder = tempfile::tempdir().unwrap();
    let check = |csv: &str| {
        fs::write(folder.path().join("s.csv"), csv).unwrap();
        gpipe_in(folder.path(), &["schedule", "check", "s.csv"])
    };
    assert!(refused(&check("0F0,0F0,0B0\n"), 1).contains("0F0 for the second time"));
    assert!(refused(&check("0F0,0B0\n1F0\n"), 1).contains("1B0 is missing"));
    assert!(refused(&check("0B0,0F0\n"), 1).contains("0B0"));
    assert!(refused(&check("0F0,hello\n"), 2).contains("s.csv: row 1, cell 2: `hello`"));
    assert!(refused(&check(""), 2).contains("no action"));
    assert!(refused(&check("99999999999999999999F0\n"), 2).contains("too large"));
}

#[test]
fn a_small_schedule_is_drawn_in_columns() {
    let args = [
        "schedule",
        "show",
        "--schedule",
        "1f1b",
        "--devices",
        "2",
        "--micro",
        "2",
    ];
    insta::assert_snapshot!(stdout(&gpipe(&args)), @r"
    F0 F1  .  . B0 B0  . B1 B1
     . F0 B0 B0 F1 B1 B1  .  .
    ");
}
