//! Pages of `simulate` say what its text says.

use super::{gpipe, stdout};

/// What is printed of these words, and the page of the same.
fn both(words: &str) -> (String, String) {
    let words: Vec<&str> = words.split_whitespace().collect();
    let text = stdout(&gpipe(&words));
    let page = stdout(&gpipe(&[&words[..], &["--format", "html"]].concat()));
    (text, page)
}

/// Jitter, failures, single micro-batches and the bound of a computed schedule stood in the text alone,
/// and what fits was said of no page.
#[test]
fn what_the_text_says_below_its_table_stands_on_the_page() {
    let kept = "simulate --devices 4 --micro 8 --activation-bytes 512MiB --output-bytes 1MiB";
    for (more, begins) in [
        (
            "--schedule 1f1b --jitter 5% --mtbf 6h --checkpoint-time 30s",
            &["jitter of 5.0 %", "a failure every 6.0 h"][..],
        ),
        ("--schedule 1f1b --memory 1GiB", &["does not fit: device 0"]),
        (
            "--schedule 1f1b --memory 2GiB",
            &["fits the memory of each device"],
        ),
        (
            "--schedule auto --recompute auto --memory 700MiB",
            &[
                "single micro-batches are recomputed: ",
                "no schedule that takes micro-batches in order ",
            ],
        ),
        ("--schedule zb-h2 --steps 5", &["a step takes "]),
    ] {
        let (text, page) = both(&format!("{kept} {more}"));
        for begin in begins {
            let said = text.lines().find(|line| line.starts_with(begin));
            let said = said.unwrap_or_else(|| panic!("{begin}: {text}"));
            assert!(page.contains(&format!(">{said}</p>")), "{said}");
        }
    }
}

/// The page had columns for it, which were empty.
#[test]
fn a_limit_of_memory_is_drawn_and_in_the_numbers() {
    let line =
        "simulate --schedule 1f1b --devices 4 --micro 8 --activation-bytes 512MiB --memory 1GiB";
    let (_, page) = both(line);
    for wanted in [
        "<p class=\"say warn\">does not fit: device 0 takes 1.0 GiB more than its 1.0 GiB</p>",
        "on device 0, 200.0 % of its 1.0 GiB",
        ">limit 1.0 GiB</text>",
        "<td>1.0 GiB</td><td>150.0 %</td>",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
}
