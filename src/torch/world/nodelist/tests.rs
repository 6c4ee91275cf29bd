use proptest::prelude::*;

use super::Nodelist;

fn hosts(list: &str) -> Vec<String> {
    Nodelist::parse(list).unwrap().hosts().collect()
}

#[test]
fn lists_as_slurm_writes_them() {
    assert_eq!(
        hosts("node[01-04,7],gpu-a[1-2]-x"),
        [
            "node01", "node02", "node03", "node04", "node7", "gpu-a1-x", "gpu-a2-x"
        ]
    );
    assert_eq!(hosts("login"), ["login"]);
    assert_eq!(hosts("a.b.example,c"), ["a.b.example", "c"]);
    assert_eq!(hosts("n[098-101]"), ["n098", "n099", "n100", "n101"]);
    let racks = ["r0n1", "r0n2", "r1n1", "r1n2"];
    assert_eq!(hosts("r[0-1]n[1-2]"), racks);
    assert_eq!(hosts("[7-8]"), ["7", "8"]);
}

#[test]
fn the_first_of_very_many_is_at_hand() {
    let list = Nodelist::parse("n[00-18446744073709551615]r[1-999999999]").unwrap();
    assert_eq!(list.first(), "n00r1");
}

#[test]
fn what_is_no_list_is_told() {
    for (list, why) in [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("a[1-2", "not closed"),
        ("a1-2]", "closed that is not open"),
        ("a[1-[2]]", "within another"),
        ("a[]", "`` is no number"),
        ("a[x-2]", "`x-2` is no number"),
        ("a[+1]", "`+1` is no number"),
        ("a[1-2-3]", "`1-2-3` is no number"),
        ("a[4-2]", "`4-2` ends before it begins"),
        ("a[1-99999999999999999999]", "is no number"),
    ] {
        let error = Nodelist::parse(list).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{list}`")), "{error}");
        assert!(error.contains(why), "{list}: {error}");
    }
}

/// A part of a name: its text, and the names that it stands for.
fn part() -> impl Strategy<Value = (String, Vec<String>)> {
    let text = "[a-z][a-z.-]{0,4}".prop_map(|text| (text.clone(), vec![text]));
    let range = (0_u64..200, 0_u64..6, 1_usize..5).prop_map(|(first, more, digits)| {
        let number = |number: u64| format!("{number:0digits$}");
        let written = match more {
            0 => number(first),
            more => format!("{}-{}", number(first), number(first + more)),
        };
        let all: Vec<_> = (first..=first + more).map(number).collect();
        (written, all)
    });
    let ranges = prop::collection::vec(range, 1..4).prop_map(|ranges| {
        let (written, all): (Vec<_>, Vec<_>) = ranges.into_iter().unzip();
        (format!("[{}]", written.join(",")), all.concat())
    });
    prop_oneof![text, ranges]
}

proptest! {
    #[test]
    fn a_list_is_all_choices_of_its_numbers(
        names in prop::collection::vec(prop::collection::vec(part(), 1..4), 1..4)
    ) {
        let (mut list, mut expected) = (Vec::new(), Vec::new());
        for parts in names {
            let (mut written, mut all) = (String::new(), vec![String::new()]);
            for (text, choices) in parts {
                written += &text;
                let longer = |begin: &String| {
                    let begin = begin.clone();
                    choices.iter().map(move |end| format!("{begin}{end}")).collect::<Vec<_>>()
                };
                all = all.iter().flat_map(longer).collect();
            }
            list.push(written);
            expected.extend(all);
        }
        let list = Nodelist::parse(&list.join(",")).unwrap();
        prop_assert_eq!(list.first(), expected[0].clone());
        prop_assert_eq!(list.hosts().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_text_is_too_odd(text in "[\\[\\],0-9a-z-]{0,24}|\\PC{0,12}") {
        if let Ok(list) = Nodelist::parse(&text) {
            prop_assert!(!list.first().is_empty());
        }
    }
}
