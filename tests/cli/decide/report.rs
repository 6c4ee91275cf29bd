//! `--report`: the page about a profile and its plan.

use std::fs;

use super::{as_sentence, folder_with_profile, gpipe_in, refused, said, stdout};

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

/// Regression test: the output did not say how to keep an unsaved plan, or how to use a saved one.
#[test]
fn a_plan_says_what_to_do_with_it() {
    let folder = folder_with_profile();
    for (more, next) in [
        (
            "",
            "add -o plan.json to keep the plan; `gpipe-rs train --plan plan.json` follows it",
        ),
        (
            " -o p.json",
            "`gpipe-rs train --plan p.json` follows it, with the data and the .pt2 that were profiled",
        ),
    ] {
        let line = format!("plan --profile profile.json --devices 2 --batch 8{more}");
        let text = stdout(&gpipe_in(
            folder.path(),
            &line.split(' ').collect::<Vec<_>>(),
        ));
        assert_eq!(said(&text, "next"), next, "{text}");
    }
}

/// Regression test: runners-up that differ only in layout had rows of equal numbers; the page named a profile
/// that does not exist, and left out the notes below the text's tables.
#[test]
fn the_page_of_a_cluster_says_what_its_text_does() {
    let folder = tempfile::tempdir().unwrap();
    let args = "plan --model-shape gpt2-xl --cluster rtx-4090 --memory-reserve 0 --micro-size 1 --batch 64 --explain --report page.html";
    let args: Vec<&str> = args.split_whitespace().collect();
    let text = stdout(&gpipe_in(folder.path(), &args));
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    let flags = page.replace("<span class=\"flag\">", "<code class=\"flag\">");
    // Flags are marked as code on the page, also within a command; in the text they are plain.
    let mut pieces = flags.split("<code class=\"flag\">");
    let mut plain = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let end = piece.find("</").unwrap();
        let behind = piece[end..].find('>').unwrap() + end + 1;
        plain += &(piece[..end].to_owned() + &piece[behind..]);
    }
    let plain = plain.replace("<code>", "`").replace("</code>", "`");
    let plain = plain.replace('\u{2019}', "'").replace('\u{a0}', " ");
    // `train` has no model with a shape's layers.
    assert!(!said(&text, "next").contains("train --plan"), "{text}");
    for title in [
        "all-reduce",
        "cards",
        "bound",
        "pipeline",
        "more",
        "model",
        "groups",
        "assumed",
    ] {
        let note = format!("{title}: {}", said(&text, title));
        assert!(
            plain.contains(&format!("<p>{}</p>", as_sentence(&note))),
            "{note}"
        );
    }
    let limit = said(&text, "limit");
    let (_, limit) = limit.split_once(": ").unwrap();
    assert!(plain.contains(limit), "{limit}");
    for wanted in [
        "scope=\"col\">replicas \u{d7} devices</th>",
        ">4 \u{d7} 1</td>",
        ">2 \u{d7} 2</td>",
        "numbers of chunks (stages a device) and of replicas",
        "<dd>4 cards</dd>",
        "of 1 sample<",
        "one micro-batch of 1 sample.",
        "Nothing was measured",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    for wrong in [
        "1 samples",
        "file with the profile",
        "a card</dd>",
        ">peak memory<",
    ] {
        assert!(!page.contains(wrong), "{wrong}");
    }
}

/// Regression test: the card gave the micro-batches of all replicas together, the text those of each.
#[test]
fn micro_batches_are_those_of_each_replica() {
    let folder = folder_with_profile();
    let args = "plan --profile profile.json --devices 4 --replicas 2 --micro 8 --report page.html";
    let args: Vec<&str> = args.split_whitespace().collect();
    let text = stdout(&gpipe_in(folder.path(), &args));
    assert!(
        text.contains(" 4 micro-batches each of 8 samples"),
        "{text}"
    );
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    let card =
        "<dt>Micro-batches</dt><dd>4</dd><dd class=\"note\">for each replica, of 8 samples</dd>";
    assert!(page.contains(card));
    // The memory of these is known.
    assert!(page.contains(">peak memory</th>"));
}

/// Regression test: a stage was to be "100 % faster", which means taking no time.
#[test]
fn what_helps_most_is_told_as_time_that_is_saved() {
    let folder = folder_with_profile();
    let simulated = |balance: &str| {
        let line =
            "simulate --profile profile.json --schedule 1f1b --devices 2 --micro 4 --balance";
        let args = line.split(' ').chain([balance]).collect::<Vec<_>>();
        stdout(&gpipe_in(folder.path(), &args))
    };
    let text = simulated("8,4");
    assert!(
        said(&text, "helps most").contains(" % less time ("),
        "{text}"
    );
    // Equal stages have no outlier: reducing one to nothing is no advice.
    let even = simulated("7,5");
    assert!(!even.contains("helps most"), "{even}");
}
