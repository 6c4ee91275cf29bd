//! `gpipe-rs simulate`.

use std::fs;

use serde_json::{Value, json};

use super::{flat, folder_with_profile, gpipe, gpipe_in, number, refused, simulate, stdout};

#[test]
fn bubbles_are_those_of_the_literature() {
    // Tf, Ti, Tw in microseconds, and the resulting bubble times.
    let times = [
        "--forward-us",
        "1000",
        "--input-us",
        "1300",
        "--weight-us",
        "700",
    ];
    let (f, i, w) = (1000.0, 1300.0, 700.0);
    for (p, m) in [(2, 4), (4, 8), (8, 16)] {
        let gaps = (p - 1) as f64;
        for (schedule, v, bubble) in [
            ("gpipe", 1, gaps * (f + i + w)),
            ("1f1b", 1, gaps * (f + i + w)),
            ("interleaved-1f1b", 2, gaps * (f + i + w) / 2.0),
            ("looped-bfs", 2, gaps * (f + i + w) / 2.0),
            ("zb-h1", 1, gaps * (f + i - w)),
            ("interleaved-zb", 2, gaps * (f + i - w) / 2.0),
        ] {
            let json = simulate(schedule, p, m, &times);
            let makespan = number(&json["makespan_us"]);
            let expected = m as f64 * (f + i + w) + bubble;
            assert!(
                (makespan - expected).abs() < 1e-6,
                "{schedule} {p} {m}: {json}"
            );
            assert!((number(&json["bubble_fraction"]) - bubble / expected).abs() < 1e-9);
            assert_eq!(json["chunks"], v, "{schedule}");
            assert_eq!(json["idle_us"].as_array().unwrap().len(), p);
            assert_eq!(
                (&json["devices"], &json["micro_batches"]),
                (&json!(p), &json!(m))
            );
            assert_eq!(json["schedule"], schedule);
        }
    }
}

#[test]
fn in_flight_counts_a_chunk_as_its_share() {
    let of = |schedule| simulate(schedule, 4, 8, &[])["peak_in_flight"].clone();
    assert_eq!(of("1f1b"), json!([4.0, 3.0, 2.0, 1.0]));
    assert_eq!(of("gpipe"), json!([8.0, 8.0, 8.0, 8.0]));
    // [(v - 1) p + 2 (p - 1 - r) + 1] / v
    assert_eq!(of("interleaved-1f1b"), json!([5.5, 4.5, 3.5, 2.5]));
    assert_eq!(of("zbv"), json!([4.0, 4.0, 4.0, 4.0]));
    let json = simulate("1f1b", 4, 8, &["--activation-bytes", "1MiB"]);
    assert_eq!(
        json["peak_bytes"],
        json!([4 << 20, 3 << 20, 2 << 20, 1 << 20])
    );
}

#[test]
fn a_link_costs_what_its_bandwidth_and_latency_say() {
    let flags = ["--link", "1GB/s,50us", "--output-bytes", "100kB"];
    let one = number(&simulate("forward-only", 2, 1, &flags)["makespan_us"]);
    assert!((one - 2150.0).abs() < 1e-9, "{one}");
}

#[test]
fn auto_is_never_behind_a_built_in_schedule() {
    let folder = folder_with_profile();
    for flags in [
        &["--link", "10GB/s,20us", "--profile", "profile.json"][..],
        &[],
    ] {
        let mut args = vec![
            "simulate",
            "--compare",
            "--devices",
            "3",
            "--micro",
            "6",
            "--json",
        ];
        args.extend(flags);
        let all: Vec<Value> =
            serde_json::from_str(&stdout(&gpipe_in(folder.path(), &args))).unwrap();
        assert_eq!(all.len(), 13);
        let auto = all.iter().find(|case| case["schedule"] == "auto").unwrap();
        for case in all.iter().filter(|case| case["schedule"] != "forward-only") {
            let Some(makespan) = case["makespan_us"].as_f64() else {
                assert!(case["refused"].is_string(), "{case}");
                continue;
            };
            assert!(number(&auto["makespan_us"]) <= makespan + 1e-6, "{case}");
        }
    }
}

/// Regression test: a comparison could not be drawn, though a sweep of the same schedules could.
#[test]
fn a_comparison_is_drawn_as_a_page() {
    let folder = folder_with_profile();
    let args =
        "simulate --compare --devices 4 --micro 8 --activation-bytes 1GiB --memory 3GiB -o c.html";
    stdout(&gpipe_in(
        folder.path(),
        &args.split(' ').collect::<Vec<_>>(),
    ));
    let page = std::fs::read_to_string(folder.path().join("c.html")).unwrap();
    let table = stdout(&gpipe(&args.split(' ').take(10).collect::<Vec<_>>()));
    let mut last = 0;
    for row in table
        .lines()
        .skip_while(|line| !line.starts_with("  schedule"))
        .skip(1)
        .take_while(|line| !line.starts_with("* the fastest") && !line.starts_with('('))
    {
        let name = row[2..].split("  ").next().unwrap();
        let place = page.find(&format!("scope=\"row\">{name}"));
        let place = place.unwrap_or_else(|| panic!("{name} is not in the page"));
        assert!(place > last, "{name} is in another order than in the table");
        last = place;
    }
    assert!(page.contains("does not fit: ") && page.contains("<tr role=\"row\" class=\"best\">"));
    // If nothing fits, nothing is marked as best.
    let none = args.replace("3GiB", "1MiB");
    stdout(&gpipe_in(
        folder.path(),
        &none.split(' ').collect::<Vec<_>>(),
    ));
    let none = std::fs::read_to_string(folder.path().join("c.html")).unwrap();
    assert!(!none.contains("<tr role=\"row\" class=\"best\">") && none.contains("<dt>First</dt>"));
    // A picture of each schedule, with all of its actions.
    assert!(
        page.matches("<svg").count() >= 10,
        "{}",
        page.matches("<svg").count()
    );
}

#[test]
fn the_table_of_all_schedules_names_each() {
    let text = stdout(&gpipe(&[
        "simulate",
        "--compare",
        "--devices",
        "4",
        "--micro",
        "8",
    ]));
    for name in ["gpipe", "1f1b", "zbv", "dualpipe-v", "forward-only", "auto"] {
        assert!(
            text.lines().any(|line| line[2..].starts_with(name)),
            "{name}: {text}"
        );
    }
    // Rows are sorted by step time.
    let rows = text.lines().skip(2).take_while(|line| !line.is_empty());
    let rows = rows.filter(|line| line.contains(" ms "));
    let steps: Vec<f64> = rows
        .filter(|line| !line.contains("forward-only"))
        .map(|line| {
            let (step, _) = line.split_once(" ms ").unwrap();
            step.rsplit(' ').next().unwrap().parse().unwrap()
        })
        .collect();
    assert!(steps.len() > 8 && steps.is_sorted(), "{text}");
    // All equally fast rows are marked as winners, and no others.
    let winners = text
        .lines()
        .filter(|line| line.starts_with("* ") && line.contains(" ms "));
    let fastest = steps
        .iter()
        .filter(|step| step.total_cmp(&steps[0]).is_eq())
        .count();
    assert!(
        winners.clone().all(|line| line.contains(" 25.50 ms ")),
        "{text}"
    );
    assert_eq!((winners.count(), fastest), (3, 3), "{text}");
    assert!(
        text.contains(
            "* the fastest\n\ntimes          assumed, not measured: each device takes 1.00 ms"
        ),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(
        text.starts_with("4 devices, 8 micro-batches, the fastest first"),
        "{text}"
    );
}

#[test]
fn text_has_a_row_a_device_within_the_width() {
    let text = stdout(&gpipe(&[
        "simulate",
        "--schedule",
        "1f1b",
        "--devices",
        "4",
        "--micro",
        "8",
    ]));
    assert_eq!(
        text.lines().filter(|line| line.starts_with("dev ")).count(),
        4
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.contains("bubble 27.3 %"), "{text}");
}

/// Regression test: where names do not fit, the text was unreadable and pointed nowhere.
#[test]
fn a_text_too_narrow_for_names_says_where_they_are() {
    let text = |devices: &str, micro: &str| {
        let args = [
            "simulate",
            "--schedule",
            "zbv",
            "--devices",
            devices,
            "--micro",
            micro,
        ];
        stdout(&gpipe(&args))
    };
    let hint =
        "names do not fit these columns: write a page with -o FILE.html, where you can\nzoom in\n";
    assert!(text("8", "32").contains(hint));
    assert!(!text("2", "4").contains("names do not fit"));
}

#[test]
fn every_format_is_written_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (format, start) in [
        ("text", "zb-h1: "),
        ("svg", "<svg "),
        ("html", "<!DOCTYPE html>"),
        ("trace", "{"),
        ("json", "{"),
    ] {
        let args = [
            "simulate",
            "--schedule",
            "zb-h1",
            "--devices",
            "2",
            "--micro",
            "4",
            "--format",
            format,
        ];
        let to_stdout = stdout(&gpipe(&[&args[..], &["-o", "-"]].concat()));
        let to_file = gpipe_in(folder.path(), &[&args[..], &["-o", "out"]].concat());
        assert_eq!(stdout(&to_file), "", "{format}");
        let written = fs::read_to_string(folder.path().join("out")).unwrap();
        assert!(written.starts_with(start), "{format}");
        assert_eq!(written, to_stdout, "{format}");
        if format == "trace" || format == "json" {
            assert!(serde_json::from_str::<Value>(&written).is_ok(), "{format}");
        }
    }
}

#[test]
fn a_profile_is_simulated_by_its_balance() {
    let folder = folder_with_profile();
    let run = |balance: &str| {
        let args = [
            "simulate",
            "--schedule",
            "1f1b",
            "--devices",
            "2",
            "--micro",
            "4",
            "--json",
            "--profile",
            "profile.json",
            "--balance",
            balance,
        ];
        gpipe_in(folder.path(), &args)
    };
    let makespan = |balance| {
        let json: Value = serde_json::from_str(&stdout(&run(balance))).unwrap();
        number(&json["makespan_us"])
    };
    // 1400 microseconds of forward in all: 7 and 7.
    let (best, even, manual) = (makespan("profile"), makespan("uniform"), makespan("7,5"));
    assert!((best - manual).abs() < 1e-6, "{best} {manual}");
    assert!((best - (4.0 + 1.0) * 3.0 * 700.0).abs() < 1e-6, "{best}");
    assert!(best < even && even <= makespan("6,6") + 1e-6);
    assert!(refused(&run("7,4"), 2).contains("leaves out layer 11"));
    assert!(refused(&run("profil"), 2).contains("must be profile, parameters"));
}

#[test]
fn devices_may_share_cores() {
    let makespan = |more: &[&str]| number(&simulate("1f1b", 3, 4, more)["makespan_us"]);
    // 12 forwards and 12 backwards of 1 and 2 ms, one after the other.
    assert!((makespan(&["--cores", "1"]) - 36_000.0).abs() < 1e-6);
    assert!(makespan(&["--cores", "2"]) > makespan(&[]));
    assert!((makespan(&["--cores", "3"]) - makespan(&[])).abs() < 1e-9);
}

/// Regression test: each flag was refused beside the other.
#[test]
fn processes_of_one_machine_may_share_its_cores() {
    let makespan = |more: &[&str]| {
        let link = ["--link", "1GB/s,1ms"];
        number(&simulate("1f1b", 4, 4, &[&link[..], more].concat())["makespan_us"])
    };
    let [cores, processes] = [["--cores", "2"], ["--processes", "2"]];
    let both = makespan(&[cores, processes].concat());
    assert!(
        both >= makespan(&cores) && both > makespan(&processes),
        "{both}"
    );
    // Enough cores change nothing.
    let enough = makespan(&[processes, ["--cores", "4"]].concat());
    assert!((enough - makespan(&processes)).abs() < 1e-9);
}

#[test]
fn steps_in_a_row_have_the_bubble_of_their_steady_state() {
    let steady = |json: &Value| number(&json["steady_bubble_fraction"]);
    for (p, m) in [(4, 8), (4, 32), (8, 32)] {
        for schedule in ["zb-h2", "zbv", "auto"] {
            let json = simulate(schedule, p, m, &["--steps", "20"]);
            assert!(steady(&json).abs() < 1e-9, "{json}");
            assert!(number(&json["step_us"]) < number(&json["barrier_step_us"]));
            assert_eq!(json["steps"], 20);
        }
    }
    // (p - 1) / (3 m + p - 1), with a barrier and without.
    let json = simulate("zb-h1", 4, 8, &["--steps", "20"]);
    assert!((steady(&json) - 3.0 / 27.0).abs() < 1e-9, "{json}");
    let json = simulate("zb-h2", 4, 8, &["--steps", "2"]);
    assert!(json["steady_bubble_fraction"].is_null(), "{json}");
    let words = "simulate --schedule zb-h2 --devices 4 --micro 8 --steps 20";
    let words: Vec<&str> = words.split(' ').collect();
    let text = stdout(&gpipe(&words));
    assert!(
        text.starts_with("zb-h2: 4 devices, 8 micro-batches, 20 steps in a row\n"),
        "{text}"
    );
    assert!(
        flat(&text).contains(
            "0.00 % idle in the steady state; with a barrier it takes 27.00 ms, 11.11 % idle"
        ),
        "{text}"
    );
    // Pictures must not show the time of all steps as that of one.
    let picture = |format| stdout(&gpipe(&[&words[..], &["--format", format]].concat()));
    let (svg, page) = (picture("svg"), picture("html"));
    // Non-breaking spaces join numbers to their units.
    let page = page.replace('\u{a0}', " ");
    assert!(
        svg.contains(">20 steps 483.00 ms, bubble 0.6 %<"),
        "{svg:.3000}"
    );
    for wanted in [
        "24.15 ms",
        "of 20 in a row, which take 483.00 ms",
        "Bubble, steady",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    let replicas = [&words[..], &["--replicas", "2"]].concat();
    let error = refused(&gpipe(&replicas), 2);
    assert!(
        error.contains("--steps") && error.contains("--replicas"),
        "{error}"
    );
}

/// Zero Bubble's 1.5 B model on four devices with half of 1F1B's memory.
#[test]
fn a_computed_schedule_recomputes_single_micro_batches_where_memory_is_tight() {
    let flags = "--forward-us 18522 --input-us 18086 --weight-us 9337 --activation-bytes 1000 \
                 --output-bytes 100 --memory 2000 --recompute";
    let step = |when: &str| {
        let flags: Vec<&str> = flags.split_whitespace().chain([when]).collect();
        simulate("auto", 4, 8, &flags)
    };
    let (never, auto) = (step("never"), step("auto"));
    assert!(never.get("recomputed").is_none());
    let counts: Vec<u64> = serde_json::from_value(auto["recomputed"].clone()).unwrap();
    assert!(
        counts.iter().any(|count| (1..8).contains(count)),
        "{counts:?}"
    );
    assert_eq!(
        (&auto["fits"], &never["fits"]),
        (&true.into(), &true.into())
    );
    assert!(number(&auto["makespan_us"]) < 0.95 * number(&never["makespan_us"]));
    let args = "simulate --schedule auto --devices 4 --micro 8 --forward-us 18522 --input-us 18086 \
                --weight-us 9337 --activation-bytes 1000 --output-bytes 100 --memory 2000 \
                --recompute auto";
    let text = stdout(&gpipe(&args.split_whitespace().collect::<Vec<_>>()));
    let words = format!("recomputed: {} of 8 on stage 0", counts[0]);
    assert!(text.contains(&words), "{text}");
    // Recomputation needs the size of the stage's input.
    let args =
        "simulate --schedule 1f1b --devices 2 --micro 2 --activation-bytes 1000 --recompute auto";
    let why = refused(&gpipe(&args.split_whitespace().collect::<Vec<_>>()), 2);
    assert!(why.contains("--output-bytes"), "{why}");
}

/// Regression test: cuts had the smallest bottleneck, and a memory limit made a step shorter.
#[test]
fn a_limit_of_memory_makes_no_step_shorter() {
    let profile = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/data/profiles/gpt.json"
    );
    for schedule in ["zbv", "interleaved-1f1b", "1f1b"] {
        let step = |memory: &[&str]| {
            let flags = [&["--profile", profile], memory].concat();
            number(&simulate(schedule, 4, 8, &flags)["makespan_us"])
        };
        let without = step(&[]);
        let within = step(&["--memory", "600MiB"]);
        assert!(without <= within, "{schedule}: {without} {within}");
    }
}

/// Regression test: `simulate` refused `--report`, which train, profile and plan take.
#[test]
fn a_report_is_written_beside_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let shape = "--devices 2 --micro 4";
    for (what, heading) in [
        ("--schedule 1f1b", "gpipe-rs: simulation"),
        ("--compare", "comparison of schedules"),
        ("--sweep schedule=gpipe,1f1b", "a sweep of simulations"),
    ] {
        let line = format!("simulate {what} {shape}");
        let run = |more: &[&str]| {
            let args: Vec<&str> = line.split(' ').chain(more.iter().copied()).collect();
            gpipe_in(folder.path(), &args)
        };
        let plain = stdout(&run(&[]));
        assert_eq!(stdout(&run(&["--report", "r.html"])), plain, "{what}");
        let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
        assert!(page.contains(heading), "{what}: {page}");
        stdout(&run(&["-o", "o.html"]));
        assert_eq!(
            fs::read_to_string(folder.path().join("o.html")).unwrap(),
            page
        );
        let told = refused(&run(&["--report", "r.svg"]), 2);
        assert!(
            told.contains("--report r.svg: the name must end in .html"),
            "{told}"
        );
    }
}

/// Regression test: for a table, a name ending in .svg was suggested instead of .png, and then refused, too.
#[test]
fn a_picture_of_several_schedules_is_refused_with_what_is_written() {
    for what in ["--compare", "--sweep micro=4,8"] {
        for name in ["x.png", "x.svg"] {
            let line = format!("simulate {what} --devices 2 --micro 4 -o {name}");
            let told = refused(&gpipe(&line.split(' ').collect::<Vec<_>>()), 2);
            assert!(told.contains(&format!("--output {name}: ")), "{told}");
            assert!(told.contains("ends in .html, .json or .txt"), "{told}");
        }
    }
}

/// Regression test: a middle stage was given more forwards than the previous one had done, and the program
/// panicked.
#[test]
fn a_schedule_for_steps_in_a_row_is_computed_for_uneven_stages() {
    let folder = tempfile::tempdir().unwrap();
    let layer = |forward: u32, backward: u32| {
        json!({
            "name": "block", "forward_us": forward, "backward_input_us": backward,
            "backward_weight_us": backward, "parameter_bytes": 1000, "activation_bytes": 1000,
            "output_bytes": 100,
        })
    };
    let layers = [layer(10_000, 100), layer(10, 10), layer(100, 100)];
    let profile = json!({"version": 1, "device": "cpu", "batch": 16, "layers": layers});
    fs::write(folder.path().join("p.json"), profile.to_string()).unwrap();
    let line =
        "simulate --schedule auto --profile p.json --devices 3 --balance 1,1,1 --micro 4 --steps 3";
    let text = stdout(&gpipe_in(
        folder.path(),
        &line.split(' ').collect::<Vec<_>>(),
    ));
    assert!(text.contains("3 steps in a row"), "{text}");
}
