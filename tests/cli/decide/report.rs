//! `--report`: the page about a profile and its plan.

use std::fs;

use super::{folder_with_profile, gpipe_in, refused, stdout};

#[test]
fn a_page_is_written_besides_what_is_printed() {
    let folder = folder_with_profile();
    let args = "plan --profile profile.json --devices 2 --memory 2GiB --json --report report.html";
    let args: Vec<&str> = args.split_whitespace().collect();
    let text = stdout(&gpipe_in(folder.path(), &args));
    assert_eq!(
        text,
        stdout(&gpipe_in(folder.path(), &args[..args.len() - 2]))
    );
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("<h1>profile</h1>"), "named after the profile");
    let schedule = plan["schedule"].as_str().unwrap();
    assert!(page.contains(&format!("<dt>Schedule</dt><dd>{schedule}</dd>")));
    assert!(page.contains("<p class=\"say\" id=\"limit\"><strong>"));
    assert!(page.contains("scope=\"row\">block.11</th>"));
}

#[test]
fn a_page_that_cannot_be_is_told_before_the_work() {
    let folder = folder_with_profile();
    fs::create_dir(folder.path().join("folder.html")).unwrap();
    fs::copy(
        folder.path().join("profile.json"),
        folder.path().join("p.html"),
    )
    .unwrap();
    let verbs = [
        "plan --profile p.html --devices 2 -o out.html",
        #[cfg(feature = "cli")]
        "profile --model mlp -o p.html --plan out.html",
    ];
    for verb in verbs {
        for (file, why) in [
            ("report.txt", "must end in .html"),
            ("-", "must end in .html"),
            ("missing/report.html", "there is no folder missing"),
            ("folder.html", "this is a folder"),
            ("./p.html", "this is the file of -"),
            ("out.html", "this is the file of -"),
        ] {
            let mut args: Vec<&str> = verb.split_whitespace().collect();
            args.extend(["--report", file]);
            let message = refused(&gpipe_in(folder.path(), &args), 2);
            let start = format!("error: --report {file}: ");
            assert!(
                message.starts_with(&start) && message.contains(why),
                "{message}"
            );
        }
        assert!(!folder.path().join("out.html").exists(), "{verb}");
    }
}
