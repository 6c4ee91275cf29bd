//! Table cells with dates, or without a value. Regression test: such columns could only be left out.

use std::fs;
use std::path::Path;

use gpipe::data::{Missing, Normalise, SampleOptions, Samples};

use super::{all, floats, refused};

fn plain() -> SampleOptions {
    SampleOptions::default()
        .held_out(0.0)
        .normalise(Normalise::None)
}

/// The inputs of a table, row after row.
fn inputs(path: &Path, text: &str, options: &SampleOptions) -> Vec<Vec<f64>> {
    fs::write(path, text).unwrap();
    let samples = Samples::open(path, options).unwrap();
    let width = samples.input()[0] as usize;
    let x = floats(&all(&samples).0);
    x.chunks(width).map(<[f64]>::to_vec).collect()
}

#[test]
fn dates_are_days_and_their_place_in_the_year_and_the_week() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let rows = inputs(
        &path,
        "sold,kind\n2000-01-01,a\n2000-01-08,b\n2001-01-01,a\n",
        &plain(),
    );
    assert_eq!(rows[0].len(), 5);
    let days: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(days, [0.0, 7.0, 366.0]);
    let close = |one: f64, other: f64| (one - other).abs() < 0.02;
    // A year later has the same position in the year, a week later in the week.
    assert!(
        close(rows[0][1], rows[2][1]) && close(rows[0][2], rows[2][2]),
        "{rows:?}"
    );
    assert!(
        close(rows[0][3], rows[1][3]) && close(rows[0][4], rows[1][4]),
        "{rows:?}"
    );
    assert!(!close(rows[0][1], rows[1][1]), "{rows:?}");

    let said = |text: &str| {
        fs::write(&path, text).unwrap();
        Samples::open(&path, &plain()).unwrap().notes().concat()
    };
    let told = said("sold,kind\n31.01.2024,a\n01.02.2024,b\n");
    assert!(
        told.contains("`sold` is 5 inputs: the days, and the place in the year and the week"),
        "{told}"
    );
    let told = said("at,kind\n2024-01-31T08:30:00,a\n2024-01-31 20:30,b\n");
    assert!(
        told.contains(
            "`at` is 7 inputs: the days, and the place in the year, the week and the day"
        ),
        "{told}"
    );
    let rows = inputs(
        &path,
        "at,kind\n2000-01-01T06:00:00,a\n2000-01-02 18:00,b\n",
        &plain(),
    );
    assert_eq!((rows[0][0], rows[1][0]), (0.25, 1.75));

    let wanted = [
        "`day` has dates such as 1/2/2024, of which nothing says",
        "write them as 2024-01-31",
    ];
    fs::write(&path, "day,kind\n1/2/2024,a\n3/4/2024,b\n").unwrap();
    refused(&path, &plain(), &wanted);
}

#[test]
fn later_dates_are_read_as_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    fs::write(&path, "at,kind\n2000-01-01 06:00,a\n2000-01-02 18:00,b\n").unwrap();
    let samples = Samples::open(&path, &plain()).unwrap();
    let kept = plain().kept(&samples.kept()).unwrap();
    // Without a time, the beginning of the day.
    fs::write(&other, "at\n2000-01-03\n").unwrap();
    let new = Samples::unlabelled(&other, &kept).unwrap();
    let x = floats(&all(&new).0);
    assert_eq!((x.len(), x[0], x[6]), (7, 2.0, 1.0));
    fs::write(&other, "at\nsoon\n").unwrap();
    let error = Samples::unlabelled(&other, &kept).unwrap_err().to_string();
    assert!(
        error.contains("b.csv, line 2: column `at`: `soon` is no date"),
        "{error}"
    );
}

const GAPS: &str = "age,city,score,kind\n1,Rome,1,a\n,Oslo,2,b\n3,,3,a\n5,Rome,NA,b\n";

#[test]
fn cells_without_a_value_are_filled_and_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    let fill = plain().missing(Missing::Fill);
    let rows = inputs(&path, GAPS, &fill);
    // age, its gap; Oslo, Rome, the gap; score, its gap. Without scaling, a gap is 0.
    let wanted = [
        [1., 0., 0., 1., 0., 1., 0.],
        [0., 1., 1., 0., 0., 2., 0.],
        [3., 0., 0., 0., 1., 3., 0.],
        [5., 0., 0., 1., 0., 0., 1.],
    ];
    assert_eq!(rows, wanted);

    // Scaled by the available numbers: ages have the mean 3 and the variance 8/3.
    let scaled = fill.clone().normalise(Normalise::Auto);
    let rows = inputs(&path, GAPS, &scaled);
    let ages: Vec<f64> = rows
        .iter()
        .map(|row| row[0] * (8.0_f64 / 3.0).sqrt() + 3.0)
        .collect();
    for (own, wanted) in ages.iter().zip([1.0, 3.0, 3.0, 5.0]) {
        assert!((own - wanted).abs() < 1e-6, "{ages:?}");
    }

    let samples = Samples::open(&path, &scaled).unwrap();
    let said = "cells of `age`, `city`, `score` without a value are filled in, and one more input of each \
                tells which";
    assert!(
        samples.notes().concat().contains(said),
        "{:?}",
        samples.notes()
    );
    // Later data may have gaps in columns that had none.
    fs::write(&path, GAPS.replace("NA", "4")).unwrap();
    let samples = Samples::open(&path, &scaled).unwrap();
    let kept = scaled.kept(&samples.kept()).unwrap();
    fs::write(&other, "score,age,city\n,,Rome\n").unwrap();
    let x = floats(&all(&Samples::unlabelled(&other, &kept).unwrap()).0);
    assert_eq!((x.len(), x[0], x[5]), (6, 0.0, 0.0));
    assert!(x[1] > 0.0, "{x:?}");
}

/// Regression test: it was reported as a gap, suggesting a flag already given.
#[test]
fn a_text_among_numbers_is_told_in_a_row_with_gaps_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "age,size,kind\n1,2,a\n,x,b\n").unwrap();
    let fill = plain().missing(Missing::Fill);
    refused(&path, &fill, &["line 3", "column `size`: `x` is no number"]);
}

#[test]
fn the_mean_that_fills_is_not_of_what_is_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let rows: String = (0..40)
        .map(|row| match row % 4 {
            0 => format!(",{row},1\n"),
            _ => format!("{row},{row},1\n"),
        })
        .collect();
    fs::write(&path, format!("a,b,y\n{rows}")).unwrap();
    let fill = SampleOptions::default()
        .numbers()
        .held_out(0.5)
        .missing(Missing::Fill);
    let samples = Samples::open(&path, &fill).unwrap();
    // The available training values have the mean 0.
    let mut batches = samples.batches(samples.train_len()).load().unwrap();
    let (x, _) = batches.next().unwrap().unwrap();
    let first = floats(&x.select(1, 0));
    let mean = first.iter().sum::<f64>() / first.len() as f64;
    assert!(mean.abs() < 1e-5, "{first:?}");
    assert!(first.contains(&0.0), "{first:?}");
}

/// Regression test: the first row was silently taken for the column names.
#[test]
fn a_table_without_a_header_is_pointed_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "2012-01-17,1000,Rome,a\n2012-01-18,1001,Oslo,b\n").unwrap();
    let told = Samples::open(&path, &plain()).unwrap().notes().concat();
    let wanted = "the first line is taken for the names of the columns, though `2012-01-17`, `1000` there \
                  are values";
    assert!(told.contains(wanted), "{told}");
    fs::write(&path, "day,1st,city,kind\n2012-01-17,1000,Rome,a\n").unwrap();
    assert!(
        !Samples::open(&path, &plain().numbers().target("1st"))
            .unwrap()
            .notes()
            .concat()
            .contains("first line")
    );
}

#[test]
fn rows_with_such_cells_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    let drop = plain().missing(Missing::Drop);
    let text = GAPS.replace("1,Rome,1,a", "1,Rome,1,");
    let rows = inputs(&path, &format!("{text}7,Bari,8,c\n"), &drop);
    assert_eq!(rows, [[7., 1., 0., 0., 8.]]);
    let samples = Samples::open(&path, &drop).unwrap();
    let said = "4 rows with a cell without a value left out";
    assert!(
        samples.notes().concat().contains(said),
        "{:?}",
        samples.notes()
    );
    // Lines are counted in the file.
    assert_eq!(
        samples.place(0).to_string(),
        format!("{}, line 6", path.display())
    );
    // Predictions need an answer for each row, or an error.
    let kept = drop.clone().kept(&samples.kept()).unwrap();
    fs::write(&other, "score,age,city\n,1,Rome\n").unwrap();
    let error = Samples::unlabelled(&other, &kept).unwrap_err().to_string();
    assert!(
        error.contains("line 2: column `score` has no value, and the run was not trained with"),
        "{error}"
    );
    fs::write(&path, "a,y\n,1\n,2\n").unwrap();
    refused(&path, &drop, &["all rows are left out"]);
}

#[test]
fn cells_without_a_value_are_an_error_where_nothing_else_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, GAPS).unwrap();
    let wanted = [
        "line 3",
        "columns have no value: `age` (1 row), `city` (1 row), `score` (1 row): --missing fill fills them in",
        "--drop-columns age,city,score the columns",
        "--missing fill",
        "--missing drop",
    ];
    refused(&path, &plain(), &wanted);
    fs::write(&path, "a,y\n1,\n2,3\n").unwrap();
    refused(
        &path,
        &plain(),
        &["line 2", "column `y` has no value", "--missing drop"],
    );
    // Missing targets are not filled.
    let samples = Samples::open(&path, &plain().missing(Missing::Fill)).unwrap();
    assert_eq!(
        (samples.len(), samples.notes().concat()),
        (1, "1 row with a cell without a value left out".to_owned())
    );
    refused(
        &path,
        &plain().integers().missing(Missing::Fill),
        &["whole numbers"],
    );
}
