//! The page with the table.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::table::{Row, assert_met};
use crate::{controllable, gpipe, layer_times, megatron, zero_bubble};

/// Marks around the generated part of the page.
const BEGIN: &str = "<!-- made by `make pages`, do not edit -->\n";
const END: &str = "<!-- end -->";

fn made(rows: &[Row]) -> String {
    let met = rows.iter().filter(|row| row.is_met()).count();
    let mut text = format!(
        "\n{met} of {} values are within their limits.\n\n\
         | source | case | value | published | predicted | off | limit | met |\n\
         |---|---|---|---|---|---|---|---|\n",
        rows.len()
    );
    text.extend(rows.iter().map(Row::text));
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_met()) {
        let reason = reasons.entry(row.why.unwrap_or_default()).or_default();
        reason.push(format!("{}, {}", row.source, row.case));
    }
    text.push_str("\nWhat is missed, and why:\n\n");
    let reasons = reasons.iter();
    text.extend(reasons.map(|(why, cases)| format!("- {why} ({}).\n", cases.join("; "))));
    text + "\n"
}

/// The table is up to date, and no row without a reason misses its limit.
#[test]
fn the_page_of_published_measurements_is_current() {
    let tables = [
        zero_bubble::rows(),
        layer_times::rows(),
        controllable::rows(),
        gpipe::rows(),
        megatron::rows(),
    ];
    let rows = tables.concat();
    assert_met(&rows);
    let made = made(&rows);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../book/src/published.md");
    let written = fs::read_to_string(&path).unwrap();
    let (before, rest) = written.split_once(BEGIN).unwrap();
    let (there, after) = rest.split_once(END).unwrap();
    if std::env::var_os("GPIPE_WRITE_PAGES").is_some() {
        fs::write(&path, [before, BEGIN, &made, END, after].concat()).unwrap();
        return;
    }
    let mut lines = there.lines().zip(made.lines());
    let first = lines.find(|(old, new)| old != new);
    assert!(
        there == made,
        "book/src/published.md is not what is computed; run `make pages`: {first:?}"
    );
}
