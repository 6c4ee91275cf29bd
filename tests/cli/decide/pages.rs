//! Checks that pages of `simulate` contain the information of its text.

use std::path::Path;

use super::{as_sentence, gpipe, said, stdout};
use crate::run::command;

/// The printed text and the page of the same command. Non-breaking spaces between numbers and units are plain
/// spaces here.
fn both(words: &str) -> (String, String) {
    let words: Vec<&str> = words.split_whitespace().collect();
    // Wide enough for one sentence per line.
    let text = command(Path::new("."), &words[..])
        .env("COLUMNS", "2000")
        .output()
        .unwrap();
    let text = stdout(&text);
    let page = stdout(&gpipe(&[&words[..], &["--format", "html"]].concat()));
    (text, page.replace('\u{a0}', " "))
}

/// Regression test: jitter, failures, single micro-batches and the bound of a computed schedule were in the
/// text only, and no page said what fits.
#[test]
fn what_the_text_says_below_its_table_stands_on_the_page() {
    let kept = "simulate --devices 4 --micro 8 --activation-bytes 512MiB --output-bytes 1MiB";
    for (more, titles) in [
        (
            "--schedule 1f1b --jitter 5% --mtbf 6h --checkpoint-time 30s",
            &["jitter", "failures"][..],
        ),
        ("--schedule 1f1b --memory 1GiB", &["memory"]),
        ("--schedule 1f1b --memory 2GiB", &["memory"]),
        (
            "--schedule auto --recompute auto --memory 700MiB",
            &["bound"],
        ),
        ("--schedule zb-h2 --steps 5", &["in a row"]),
    ] {
        let (text, page) = both(&format!("{kept} {more}"));
        for title in titles {
            // The page states without the title whether it fits.
            let said = said(&text, title);
            let note = match *title {
                "memory" => said,
                title => format!("{title}: {said}"),
            };
            assert!(
                page.contains(&format!(">{}</p>", as_sentence(&note))),
                "{note}"
            );
        }
    }
}

/// Regression test: the page had empty columns for the limit.
#[test]
fn a_limit_of_memory_is_drawn_and_in_the_numbers() {
    let line =
        "simulate --schedule 1f1b --devices 4 --micro 8 --activation-bytes 512MiB --memory 1GiB";
    let (_, page) = both(line);
    for wanted in [
        "<p class=\"say warn\">Does not fit: device 0 takes 1.0 GiB more than its 1.0 GiB, and one other does not fit \
         either.</p>",
        "on device 0, 200.0 % of its 1.0 GiB",
        ">limit 1.0 GiB</text>",
        ">1.0 GiB</td><td role=\"cell\" data-k=\"of the limit\">150.0 %</td>",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

/// Regression test: the page did not mention unavailable schedules, jitter or the limit, marked one of three
/// equally fast schedules, and said "no: 1.0 GiB more".
#[test]
fn the_page_of_all_schedules_says_and_marks_what_their_table_does() {
    let line = "simulate --compare --devices 4 --micro 12 --chunks 3 --activation-bytes 512MiB";
    let (text, page) = both(line);
    let (_, refused) = text.split_once("\nnot for these numbers:\n").unwrap();
    assert!(refused.lines().count() > 2, "{text}");
    for line in refused.lines() {
        let line = line.replacen('`', "<code>", 1).replacen('`', "</code>", 1);
        assert!(page.contains(&format!("<p>{line}</p>")), "{line}");
    }

    let line = "simulate --compare --devices 8 --micro 32 --activation-bytes 512MiB";
    let (text, page) = both(line);
    let marked = text
        .lines()
        .filter(|line| line.starts_with("* ") && line.contains(" ms "));
    let marked: Vec<&str> = marked
        .map(|line| line[2..].split("  ").next().unwrap())
        .collect();
    assert!(marked.len() > 1, "{text}");
    assert_eq!(
        page.matches("<tr role=\"row\" class=\"best\">").count(),
        marked.len()
    );
    for name in &marked {
        assert!(page.contains(&format!(
            "<tr role=\"row\" class=\"best\"><th role=\"rowheader\" scope=\"row\">{name}</th>"
        )));
    }
    let card = format!(
        "<dt>The fastest</dt><dd class=\"long\">{}</dd><dd class=\"note\">as fast: {}</dd>",
        marked[0],
        marked[1..].join(", ")
    );
    assert!(page.contains(&card), "{card}");

    let line = "simulate --compare --devices 4 --micro 8 --activation-bytes 1GiB --memory 3GiB --jitter 5%";
    let (text, page) = both(line);
    for wanted in [
        "<h1>4 devices of 3.0 GiB, 8 micro-batches</h1>",
        "does not fit: 1.0 GiB more",
        "<dt>The fastest that fits, with jitter</dt>",
        "<dd class=\"note\">with jitter ",
        "<tr role=\"row\" class=\"misfit\"><th role=\"rowheader\" scope=\"row\">gpipe<span class=\"note\">does not fit: ",
        "scope=\"col\">95 % of steps within</th>",
        // Bars and the limit share a scale: gpipe holds 8 GiB.
        "<i class=\"A\" style=\"width:100.00%\"></i><b style=\"left:37.50%\"></b>",
        "The line across the bars of memory is the limit: 3.0 GiB.",
        "standard deviation 5.0 %); <code>with jitter</code> is the mean of 200 simulated steps (seed 0)",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(text.starts_with(
        "4 devices of 3.0 GiB, 8 micro-batches, the fastest with jitter first, then those that do not fit"
    ));
}

/// Regression test: empty columns pushed numbers off a narrow screen, "0.0 µs" appeared beside milliseconds,
/// and "idle within" was not explained.
#[test]
fn tables_have_the_columns_that_say_something() {
    let line = "simulate --schedule 1f1b --devices 4 --micro 8 --activation-bytes 512MiB";
    let (_, page) = both(line);
    let head = "scope=\"col\">device</th><th role=\"columnheader\" scope=\"col\">activations</th>\
                <th role=\"columnheader\" scope=\"col\">peak</th><th role=\"columnheader\" scope=\"col\">at</th></tr>";
    assert!(page.contains(head));
    assert!(page.contains("scope=\"col\">idle between its actions</th>"));
    assert!(page.contains(">0</td>") && !page.contains(">0.0 µs</td>"));
    let (_, all) = both("simulate --compare --devices 4 --micro 8");
    assert!(!all.contains("peak memory"));
    // The button is also there for several steps.
    let (_, steps) = both("simulate --schedule zb-h2 --devices 4 --micro 8 --steps 3");
    assert!(steps.contains(">Whole timeline</button>"));
    // Step boundaries are marked, and actions name their step.
    assert!(steps.contains("micro-batch 9 (number 1 of step 1)\n"));
    assert_eq!(steps.matches("<path class=\"end\"").count(), 4 * 2);
}

/// Regression test: the page did not describe the combinations, and had "8.00" where the text has "8".
#[test]
fn the_page_of_a_sweep_says_of_what_it_is() {
    let line = "simulate --devices 4 --sweep schedule=gpipe,1f1b --sweep micro=4,8";
    let (text, page) = both(line);
    assert!(page.contains("<h1>4 combinations of schedule and micro-batches, 4 devices</h1>"));
    assert!(
        text.contains("       8 ") && page.contains(">8</td></tr>"),
        "{text}"
    );
    // The page names the assumed times, and leaves out unknown values.
    assert!(page.contains("<p>Assumed, not measured: each device takes 1.00 ms"));
    assert!(!page.contains("peak memory"));
    assert!(!page.contains(">8.00</td>") && !page.contains(">-</td>"));
}

/// Recipients of a page do not see the command, so the page must name its times and links.
#[test]
fn a_page_says_which_times_and_links_it_is_made_of() {
    let profile = "--profile examples/data/profiles/gpt.json";
    for (words, wanted) in [
        (
            "--forward-us 2000",
            "Assumed, not measured: each device takes 2.00 ms for the forward of a micro-batch, 1.00 ms for the \
             input half of its backward and 1.00 ms for the weight half; what it keeps until its backward \
             is not counted; transfers between devices take no time",
        ),
        (
            "--activation-bytes 512MiB --output-bytes 1MiB --link 25GB/s,5us",
            "it keeps 512.0 MiB until its backward, and it hands on 1.0 MiB; the link between devices is \
             25.0 GB/s, 5.0 µs",
        ),
        (
            "--nodes 2 --link 25GB/s,5us --node-link 10GB/s,20us",
            "the link between devices is 25.0 GB/s, 5.0 µs, that between nodes 10.0 GB/s, 20.0 µs",
        ),
        (
            profile,
            "Measured: times and bytes are those of a profile of 14 layers for cpu, in micro-batches of 16 samples; \
             transfers between devices take no time",
        ),
    ] {
        for what in ["--schedule 1f1b", "--compare"] {
            let (_, page) = both(&format!("simulate {what} --devices 4 --micro 8 {words}"));
            assert!(page.contains(wanted), "{what} {words}: {page}");
        }
    }
}

/// Regression test: the rows of GPipe and 1F1B were equal, since only the text had the difference.
#[test]
fn pages_tell_micro_batches_in_flight() {
    let (text, page) = both("simulate --compare --devices 4 --micro 8");
    assert!(page.contains("scope=\"col\">in flight</th>"));
    for (name, most) in [("gpipe", "8"), ("1f1b", "4"), ("dualpipe-v", "4.5")] {
        let row = text
            .lines()
            .find(|line| line[2..].starts_with(&format!("{name} ")));
        // Unknown memory must not add a column of dashes.
        assert_eq!(row.unwrap().split_whitespace().next_back(), Some(most));
        let (_, row) = page
            .split_once(&format!("scope=\"row\">{name}</th>"))
            .unwrap();
        assert!(
            row.split("</tr>")
                .next()
                .unwrap()
                .contains(&format!("data-k=\"in flight\">{most}</td>")),
            "{name}"
        );
    }
    // Schedules that do not train are marked below their name, not in a separate column.
    assert!(page.contains("forward-only<span class=\"note\">does not train</span></th>"));

    let (_, page) = both("simulate --schedule 1f1b --devices 4 --micro 8");
    assert!(page.contains(
        "<dt>In flight</dt><dd>4</dd><dd class=\"note\">micro-batches at most, on device 0</dd>"
    ));
    assert!(page.contains(">72.7 %</td><td role=\"cell\" data-k=\"in flight\">1</td></tr>"));
    // A single section needs no list of sections.
    assert!(!page.contains("<nav"));
    let line = "simulate --schedule gpipe --devices 4 --micro 8 --activation-bytes 1GiB";
    let (_, page) = both(line);
    for fact in [
        "micro-batches at most, on every device",
        "<dd>8.0 GiB</dd><dd class=\"note\">on every device",
    ] {
        assert!(page.contains(fact), "{fact}");
    }
    assert!(page.contains("<nav"));
}

/// Regression test: each timeline of a comparison was as wide as the page, whatever its duration.
#[test]
fn timelines_of_a_comparison_have_one_axis() {
    let (_, page) = both("simulate --compare --devices 4 --micro 8");
    let ends: Vec<&str> = page.split(" data-end=\"").skip(1).collect();
    assert!(ends.len() > 10, "{}", ends.len());
    assert!(ends.iter().all(|own| own.starts_with("33000\"")));
    // All but the longest timeline end before the axis does.
    assert!(page.matches("<path class=\"end\"").count() > 8);
    assert!(page.contains("All timelines of this page have one time axis"));
    let (_, alone) = both("simulate --schedule zbv --devices 4 --micro 8");
    assert!(
        !alone.contains("<path class=\"end\"")
            && alone.contains("<li>0F0: stage, action, micro-batch</li>")
    );
}

/// Regression test: with `-o` the warning was lost, because a picture has no room for it.
#[test]
fn a_picture_of_what_does_not_fit_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        "simulate --schedule gpipe --devices 4 --micro 8 --activation-bytes 512MiB --memory 3GiB";
    let said = |file: &str| {
        let words: Vec<&str> = line.split_whitespace().chain(["-o", file]).collect();
        let output = super::gpipe_in(folder.path(), &words);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    for file in ["g.svg", "g.html"] {
        let note = "note: does not fit: each device takes 1.0 GiB more than its 3.0 GiB";
        assert!(said(file).contains(note), "{}", said(file));
    }
}
