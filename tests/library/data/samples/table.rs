//! Tables: columns by name, classes in one order, nothing missing.

use std::fs;

use gpipe::data::{Normalise, SampleOptions, Samples};

use super::{all, floats, open, refused};

const FLOWERS: &str = "length,width,species\n5.0,3.5,setosa\n6.0,2.5,virginica\n\
                       7.0,3.0,\"versi,color\"\n4.0,3.0,setosa\n";

#[test]
fn classes_are_numbered_by_name_and_columns_scaled_by_their_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flowers.csv");
    fs::write(&path, FLOWERS).unwrap();
    let samples = Samples::open(&path, &SampleOptions::default().held_out(0.0)).unwrap();
    assert_eq!(
        samples.class_names(),
        ["setosa", "versi,color", "virginica"]
    );
    let (x, y) = all(&samples);
    assert_eq!(floats(&y), [0.0, 2.0, 1.0, 0.0]);
    // Lengths have mean 5.5 and variance 1.25, widths mean 3 and variance 1/8.
    let wanted = [-0.5, 0.5, 0.5, -0.5, 1.5, 0.0, -1.5, 0.0];
    let deviations = [1.25_f64.sqrt(), 0.125_f64.sqrt()];
    for (place, (own, wanted)) in floats(&x).into_iter().zip(wanted).enumerate() {
        assert!(
            (own - wanted / deviations[place % 2]).abs() < 1e-6,
            "{place}: {own}"
        );
    }
}

#[test]
fn what_a_run_kept_decides_over_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    fs::write(&path, FLOWERS).unwrap();
    // Columns in another order, and only one of the classes.
    fs::write(&other, "species;width;more;length\nvirginica;2.5;9;6\n").unwrap();
    let first = Samples::open(&path, &SampleOptions::default().held_out(0.0)).unwrap();
    let kept = SampleOptions::default()
        .held_out(0.0)
        .kept(&first.kept())
        .unwrap();
    let (x, y) = all(&Samples::open(&other, &kept).unwrap());
    let (wanted, _) = all(&first);
    assert_eq!((x.get(0), floats(&y)), (wanted.get(1), vec![2.0]));
    fs::write(&other, "species;width;length\nrose;2.5;6\n").unwrap();
    refused(
        &other,
        &kept,
        &["b.csv, line 2", "no class `rose`", "`virginica`"],
    );
    fs::write(&other, "species;width\nrose;2.5\n").unwrap();
    refused(&other, &kept, &["b.csv, line 1", "no column `length`"]);
    let error = first.check_same(&open(&path).unwrap().kept());
    assert!(error.is_ok(), "{error:?}");
    let mut forged = first.kept();
    forged["scaling"]["std"] = serde_json::json!([0.0, 1.0]);
    assert!(SampleOptions::default().kept(&forged).is_err());
}

#[test]
fn classes_that_are_numbers_are_in_the_order_of_these() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tsv");
    let rows: String = [10, 9, 2, 10]
        .map(|label| format!("{label}\t{}\n", label * 2))
        .concat();
    fs::write(&path, format!("\u{feff}label\tx\n{rows}")).unwrap();
    let options = SampleOptions::default().target("label").held_out(0.0);
    let samples = Samples::open(&path, &options).unwrap();
    assert_eq!(samples.class_names(), ["2", "9", "10"]);
    assert_eq!(floats(&all(&samples).1), [2.0, 1.0, 0.0, 2.0]);
    let (_, y) = all(&Samples::open(&path, &options.numbers()).unwrap());
    assert_eq!(
        (y.size(), floats(&y)),
        (vec![4, 1], vec![10.0, 9.0, 2.0, 10.0])
    );
}

#[test]
fn what_is_wrong_is_told_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    for (text, wanted) in [
        (
            "a,b,c\n1,2,3\n1,,3\n",
            &["a.csv, line 3", "column `b` has no value"][..],
        ),
        ("a,b,c\n1,2,3\n1,NA,3\n", &["line 3", "`b` has no value"]),
        ("a,b,c\n1,2,3\n\n1,2,\n", &["line 4", "`c` has no value"]),
        (
            "a,b\n1,x\nred,y\n",
            &["line 3", "column `a`: `red` is no number"],
        ),
        (
            "a,b\n1,x\n1e99,y\n",
            &["line 3", "column `a`", "too large for single precision"],
        ),
        ("a,b\n1,x\n1,y,z\n", &["line 3", "3 cells", "header has 2"]),
        ("1,2\n3,4\n", &["line 1", "put a header above them"]),
        ("a,a,b\n1,2,3\n", &["two columns `a`"]),
        (
            "a,,b\n1,2,3\n",
            &["column 2 has no name: give it one in the first line"],
        ),
        // As pandas writes its index: the message names the way to leave it out.
        (
            ",a,b\n0,1,2\n1,2,3\n",
            &["column 1 has no name", "write the table with index=False"],
        ),
        (
            "a,b\n1,2.5\n1,3\n",
            &["column `b` has numbers such as 2.5", "--target"],
        ),
        ("a,b\n", &["no row below the header"]),
        ("a\n1\n", &["beside the target `a` there is no column"]),
        ("", &["line 1", "the table is empty"]),
    ] {
        fs::write(&path, text).unwrap();
        refused(&path, &SampleOptions::default(), wanted);
    }
    fs::write(&path, FLOWERS).unwrap();
    let options = SampleOptions::default().target("colour");
    refused(
        &path,
        &options,
        &["no column `colour`", "`length`, `width`, `species`"],
    );
    fs::write(&path, b"a,b\n1,\xff\n").unwrap();
    refused(
        &path,
        &SampleOptions::default(),
        &["a.csv, line 2", "not UTF-8"],
    );
}

/// Regression test: a column of words, which most tables have, ended training.
#[test]
fn columns_of_words_are_an_input_for_each_word() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    fs::write(
        &path,
        "city,size,kind\nRome,1,a\nOslo,3,b\n\"Rome, GA\",5,a\nOslo,7,b\n",
    )
    .unwrap();
    let plain = SampleOptions::default()
        .held_out(0.0)
        .normalise(Normalise::None);
    let samples = Samples::open(&path, &plain).unwrap();
    assert_eq!(samples.input(), [4]);
    let wanted = "`city` is 3 inputs, one for each of its words";
    assert!(
        samples.notes().concat().contains(wanted),
        "{:?}",
        samples.notes()
    );
    let (x, y) = all(&samples);
    // In alphabetical order: Oslo, Rome, Rome, GA; then the size.
    let wanted = [
        0., 1., 0., 1., 1., 0., 0., 3., 0., 0., 1., 5., 1., 0., 0., 7.,
    ];
    assert_eq!(
        (floats(&x), floats(&y)),
        (wanted.to_vec(), vec![0., 1., 0., 1.])
    );

    // The order that a run stored applies to all later data.
    let kept = plain.clone().kept(&samples.kept()).unwrap();
    fs::write(&other, "size,city\n9,Rome\n").unwrap();
    let new = Samples::unlabelled(&other, &kept).unwrap();
    assert_eq!(floats(&all(&new).0), [0., 1., 0., 9.]);
    fs::write(&other, "size,city\n9,Paris\n").unwrap();
    let error = Samples::unlabelled(&other, &kept).unwrap_err().to_string();
    let wanted = "b.csv, line 2: column `city`: there was no `Paris` in what was trained on; there were \
                  `Oslo`, `Rome`, `Rome, GA`";
    assert!(error.contains(wanted), "{error}");

    let dropped = plain.clone().drop_columns(["city".to_owned()]);
    assert_eq!(Samples::open(&path, &dropped).unwrap().input(), [1]);
    let rows = (0..101).map(|row| format!("2026-11-{row},{row},1\n"));
    let rows: String = rows.collect();
    fs::write(&path, format!("day,size,kind\n{rows}")).unwrap();
    let wanted = [
        "column `day` has texts, such as `2026-11-0`, `2026-11-1`, and more than 100 different ones",
        "leave it out (--drop-columns day)",
    ];
    refused(&path, &plain, &wanted);
    // Reported together, not one after the other.
    let rows = (0..101).map(|row| format!("2026-11-{row},no. {row},1\n"));
    let rows: String = rows.collect();
    fs::write(&path, format!("day,name,kind\n{rows}")).unwrap();
    let wanted = [
        "columns `day`, `name` have texts",
        "leave them out (--drop-columns day,name)",
    ];
    refused(&path, &plain, &wanted);
    fs::write(&path, "city,kind\nRome,a\n,b\n").unwrap();
    refused(&path, &plain, &["line 3", "column `city` has no value"]);
}

/// Regression test: targets were not scaled, which from near 0 takes a model forever; in single precision,
/// large ones close to each other would be equal.
#[test]
fn numbers_to_learn_are_scaled_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "x,y\n1,1000000001\n2,1000000003\n").unwrap();
    let own = SampleOptions::default().held_out(0.0).numbers();
    let scaled = Samples::open(&path, &own.clone().scale_targets()).unwrap();
    assert_eq!(scaled.target_scale(), Some((1_000_000_002.0, 1.0)));
    assert_eq!(floats(&all(&scaled).1), [-1.0, 1.0]);
    // Later data is scaled like the run's.
    let other = folder.path().join("b.csv");
    fs::write(&other, "x,y\n1,1000000006\n").unwrap();
    let kept = own.clone().kept(&scaled.kept()).unwrap();
    assert_eq!(
        floats(&all(&Samples::open(&other, &kept).unwrap()).1),
        [4.0]
    );
    for plain in [own.clone(), own.scale_targets().normalise(Normalise::None)] {
        let samples = Samples::open(&path, &plain).unwrap();
        assert_eq!(samples.target_scale(), None);
        assert_eq!(floats(&all(&samples).1), [1e9; 2]);
    }
}

/// Regression test: `1` and `1.0` were two classes.
#[test]
fn one_number_is_one_class_however_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let options = SampleOptions::default().held_out(0.0);
    fs::write(&path, "x,y\n1,1.0\n2,1\n3,-0\n4,0\n5,+2e0\n6,0.0\n").unwrap();
    let samples = Samples::open(&path, &options).unwrap();
    assert_eq!(samples.class_names(), ["0", "1", "+2e0"]);
    assert_eq!(floats(&all(&samples).1), [1.0, 1.0, 0.0, 0.0, 2.0, 0.0]);
    // Later data may write the number in yet another way.
    let kept = options.clone().kept(&samples.kept()).unwrap();
    fs::write(&path, "x,y\n1,2\n2,01\n").unwrap();
    assert_eq!(
        floats(&all(&Samples::open(&path, &kept).unwrap()).1),
        [2.0, 1.0]
    );
    refused_class(&path, &kept, "x,y\n1,3\n");
    // Among words they are words.
    fs::write(&path, "x,y\n1,1.0\n2,1\n3,a\n").unwrap();
    let samples = Samples::open(&path, &options).unwrap();
    assert_eq!(samples.class_names(), ["1", "1.0", "a"]);
}

fn refused_class(path: &std::path::Path, options: &SampleOptions, text: &str) {
    fs::write(path, text).unwrap();
    refused(path, options, &["there was no class `3`"]);
}

/// Regression test: following the advice divided the number by 1000.
#[test]
fn a_comma_is_told_with_both_of_its_readings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let options = SampleOptions::default().numbers().held_out(0.0);
    for (cell, wanted) in [
        (
            "1,200",
            &[
                "`1200` if it stands between thousands",
                "`1.200` if it stands before decimals",
            ][..],
        ),
        ("1,200,000", &["`1200000`"]),
        ("1.200,5", &["`1200.5`"]),
        ("12,5", &["`12.5`"]),
    ] {
        for text in [
            format!("a,y\n\"{cell}\",1\n"),
            format!("a,y\n1,\"{cell}\"\n"),
        ] {
            fs::write(&path, text).unwrap();
            refused(
                &path,
                &options,
                &[&["line 2", "has a comma"], wanted].concat(),
            );
        }
    }
}

#[test]
fn what_excel_and_pandas_write_for_no_value_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    for cell in ["#N/A", "<NA>", "-nan", "#NA"] {
        fs::write(&path, format!("a,y\n1,1\n{cell},2\n")).unwrap();
        let options = SampleOptions::default().numbers();
        refused(
            &path,
            &options,
            &["column `a` has no value", "--missing fill"],
        );
    }
}
