//! Plans for models that are described by their shapes, and profiles scaled to another card.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::{flat, gpipe, gpipe_in, refused, stdout};

/// A GPT of 1.7 billion parameters on one node, small enough to be planned quickly.
const SMALL: [&str; 8] = [
    "plan",
    "--model-shape",
    "layers=24,hidden=2304,heads=24,sequence=2048,vocabulary=51200",
    "--cluster",
    "dgx-a100",
    "--batch",
    "32",
    "--json",
];

fn planned(flags: &[&str]) -> Value {
    let output = gpipe(&[&SMALL, flags].concat());
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Regression test: flags for shapes were accepted beside a profile, without effect.
#[test]
fn what_is_of_shapes_is_refused_beside_a_profile() {
    let folder = super::folder_with_profile();
    for flag in [
        "--optimizer-bytes=8",
        "--tensor-parallel=2",
        "--no-sequence-parallel",
    ] {
        let args = ["plan", "--profile", "profile.json", "--devices", "2", flag];
        let told = super::refused(&super::gpipe_in(folder.path(), &args), 2);
        assert!(told.contains("cannot be used with"), "{told}");
    }
}

#[test]
fn a_group_of_cards_is_one_device() {
    let plan = planned(&["--tensor-parallel", "4", "--replicas", "1"]);
    assert_eq!(plan["tensor_parallel"], 4);
    let peaks = plan["peak_bytes"].as_array().unwrap();
    // Eight cards form two groups at most; the memory of each is that of four cards.
    assert!((1..=2).contains(&peaks.len()), "{plan:#}");
    let own = planned(&["--tensor-parallel", "1"]);
    assert_eq!(own.get("tensor_parallel"), None);
}

/// Regression test: the table listed a group's memory as a card's, four times too much.
#[test]
fn memory_is_that_of_each_card_of_a_group() {
    let args = [&SMALL[..7], &["--tensor-parallel", "4", "--replicas", "1"]].concat();
    let text = stdout(&gpipe(&args));
    assert!(text.contains("(each a group of 4 cards)"), "{text}");
    // The text must say that `train` does not take such a plan.
    assert!(
        flat(&text).contains("without --tensor-parallel the plan is one that it takes"),
        "{text}"
    );
    let table = text.split("peak memory of each card\n").nth(1).unwrap();
    let row = table.lines().next().unwrap().split_whitespace();
    let peak = row.skip(1).collect::<Vec<_>>().join(" ");
    let peak: gpipe::partitioner::Bytes = peak.replace(' ', "").parse().unwrap();
    let plan = planned(&["--tensor-parallel", "4", "--replicas", "1"]);
    let group = plan["peak_bytes"][0].as_u64().unwrap();
    let share = peak.get() as f64 / group as f64;
    assert!((0.24..0.26).contains(&share), "{share}: {text}");
}

/// Regression test: the first plan of a small cluster was one that `train` refuses, and said so only near its
/// end.
#[test]
fn a_plan_is_one_that_train_takes() {
    let text = flat(&stdout(&gpipe(&SMALL[..7])));
    let wanted = "no tensor parallelism, as `train` has none; --tensor-parallel auto plans for \
                  frameworks that have it";
    assert!(text.contains(wanted), "{text}");
    let own = planned(&[]);
    assert_eq!(own.get("tensor_parallel"), None);
    // Groups are used if nothing fits otherwise.
    let args = [
        "plan",
        "--model-shape",
        "llama3-70b",
        "--cluster",
        "dgx-h100",
        "--batch",
        "512",
    ];
    let said = refused(&gpipe(&args), 1);
    assert!(
        said.contains("; --tensor-parallel auto looks at groups of cards"),
        "{said}"
    );
}

/// Regression test: successive errors asked for a cluster, then its links, then its cards' speed.
#[test]
fn a_shape_without_known_cards_is_told_what_to_name_at_once() {
    let shape = ["plan", "--model-shape", "llama2-7b"];
    let said = |flags: &[&str]| refused(&gpipe(&[&shape, flags].concat()), 2);
    let wanted = "name these with --cluster";
    for flags in [
        &["--devices", "4", "--memory", "24GiB"][..],
        &["--nodes", "2", "--per-node", "4", "--memory", "80GiB"],
    ] {
        let said = flat(&said(flags));
        assert!(said.contains(wanted) && said.contains("rtx-4090"), "{said}");
    }
    let said = said(&["--cluster", "rtx-5090"]);
    assert!(
        said.contains("--cluster FILE.toml with cards, memory, teraflops"),
        "{said}"
    );
}

#[test]
fn what_is_left_open_is_no_slower_than_what_is_fixed() {
    let step = |flags: &[&str]| planned(flags)["step_us"].as_f64().unwrap();
    let best = step(&["--tensor-parallel", "auto"]);
    for group in ["1", "2", "8"] {
        assert!(best <= step(&["--tensor-parallel", group]), "{group}");
    }
}

#[test]
fn slower_links_make_groups_slower() {
    let step = |link: &str| {
        let flags = ["--tensor-parallel", "8", "--link-inside", link];
        planned(&flags)["step_us"].as_f64().unwrap()
    };
    assert!(step("30GB/s,3us") > 1.5 * step("300GB/s,3us"));
}

#[test]
fn the_text_says_what_it_was_computed_from() {
    let args = [&SMALL[..7], &["--tensor-parallel", "2"]].concat();
    let short = flat(&stdout(&gpipe(&args)));
    assert!(
        short.contains("times from data sheets, up to 15 % off"),
        "{short}"
    );
    assert!(!short.contains("0.84 x / (x + 110)"), "{short}");
    let text = flat(&stdout(&gpipe(&[&args[..], &["--explain"]].concat())));
    for part in [
        "all 8 cards in groups of 2: ",
        "1.7 billion parameters",
        "% of the peak of 8 cards",
        "312 TFLOP/s and 2039 GB/s a card",
        "0.84 x / (x + 110)",
        "16 bytes a parameter",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let gpt3 = ["plan", "--model-shape", "gpt3-175b", "--cluster"];
    let wrong = |flags: &[&str]| refused(&gpipe(&[&gpt3, flags].concat()), 2);
    let said = wrong(&["rtx-4090", "--tensor-parallel", "8"]);
    assert!(said.contains("its cards can be 1, 2 or 4"), "{said}");
    let said = wrong(&["dgx-a100", "--tensor-parallel", "5"]);
    assert!(said.contains("must divide the 96 heads"), "{said}");
    let said = refused(
        &gpipe(&["plan", "--model-shape", "gpt3-175", "--cluster", "dgx-a100"]),
        2,
    );
    assert!(said.contains("did you mean `gpt3-175b`?"), "{said}");
    let said = refused(&gpipe(&["plan", "--model-shape", "gpt3-175b"]), 2);
    assert!(said.contains("--cluster"), "{said}");
}

/// Names the least memory and the fewest cards that suffice, with any grouping.
#[test]
fn a_model_that_is_too_large_is_told_what_would_be_enough() {
    let args = [
        "plan",
        "--model-shape",
        "llama3-70b",
        "--cluster",
        "rtx-4090",
        "--batch",
        "8",
    ];
    let said = flat(&refused(&gpipe(&args), 1));
    assert!(said.contains("nothing fits 4 cards of 22.5 GiB"), "{said}");
    assert!(said.contains("1.5 GiB of each device stay free"), "{said}");
    // 16 bytes for each of 70.6 billion parameters.
    assert!(said.contains("alone are 1.0 TiB"), "{said}");
    assert!(said.contains(" GiB more on each, or with"), "{said}");
    assert!(said.contains("cards like these"), "{said}");
}

/// With fewer bytes per parameter the same model fits the same cards.
#[test]
fn a_leaner_optimizer_fits_where_adam_does_not() {
    let run = |bytes: &str| {
        let args =
            "plan --model-shape llama2-7b --cluster rtx-4090 --batch 16 --tensor-parallel 1 --json";
        let args: Vec<&str> = args.split(' ').collect();
        gpipe(&[&args, &["--optimizer-bytes", bytes][..]].concat())
    };
    assert!(refused(&run("12"), 1).contains("nothing fits 4 cards"));
    let plan: Value = serde_json::from_str(&stdout(&run("4"))).unwrap();
    let peaks = plan["peak_bytes"].as_array().unwrap();
    let most = peaks.iter().filter_map(Value::as_u64).max();
    assert!(most.is_some_and(|most| most <= 45 << 29), "{plan:#}");
}

/// Regression test: a plan filled 23.3 of 24.0 GiB and ran out of memory, since a process needs more on a
/// card than its tensors.
#[test]
fn a_known_card_is_not_filled_to_the_rim() {
    let fullest = |flags: &[&str]| {
        let args = "plan --model-shape llama2-7b --cluster rtx-4090 --nodes 2 --batch 64 --json";
        let args: Vec<&str> = args.split(' ').chain(flags.iter().copied()).collect();
        let plan: Value = serde_json::from_str(&stdout(&gpipe(&args))).unwrap();
        let peaks = plan["peak_bytes"].as_array().unwrap();
        peaks.iter().filter_map(Value::as_u64).max().unwrap()
    };
    let gib = 1 << 30;
    assert!(fullest(&[]) <= 45 * gib / 2);
    let rim = fullest(&["--memory-reserve", "0"]);
    assert!(rim > 45 * gib / 2 && rim <= 24 * gib, "{rim}");
    // An explicit limit is used in full.
    assert_eq!(fullest(&["--memory", "24GiB"]), rim);
}

/// Regression test: the cards' speed was on line 55, and the number of days was missing.
#[test]
fn a_cluster_plan_begins_with_cards_speed_days_and_that_it_fits() {
    let (tokens, sequence, batch) = (300e9, 2048.0, 32.0);
    let args = [&SMALL[..7], &["--tokens", "300B"]].concat();
    let text = stdout(&gpipe(&args));
    let lines: Vec<&str> = text.lines().collect();
    let step = planned(&[])["step_us"].as_f64().unwrap() * 1e-6;
    let rate = batch * sequence / step;
    let told = lines[0].strip_prefix("all 8 cards: ").unwrap();
    let told = told.strip_suffix(" tokens/s").unwrap().replace(',', "");
    assert!((told.parse::<f64>().unwrap() - rate).abs() <= 0.5, "{text}");
    let days = tokens / rate / 86_400.0;
    assert_eq!(lines[1], format!("300 billion tokens: {days:.1} d"));
    assert!(
        lines[2].starts_with("fits: the fullest card has "),
        "{text}"
    );
    let said = refused(&gpipe(&[&SMALL[..7], &["--tokens", "many"]].concat()), 2);
    assert!(said.contains("such as 300B or 1.5T"), "{said}");
}

#[test]
fn cards_without_a_peak_are_refused() {
    let folder = tempdir().unwrap();
    let cluster = "[[nodes]]\ncount = 1\ncards = 4\nmemory = \"40GiB\"\n";
    fs::write(folder.path().join("c.toml"), cluster).unwrap();
    let args = ["plan", "--model-shape", "llama2-7b", "--cluster", "c.toml"];
    let said = refused(&gpipe_in(folder.path(), &args), 2);
    assert!(
        said.contains("give teraflops and memory_bandwidth"),
        "{said}"
    );
}

/// Four cards of an A100 node beside four with half their peak: the slower ones get fewer layers, and the
/// step is shorter than with equal stages.
#[test]
fn unequal_cards_get_unequal_stages() {
    let folder = tempdir().unwrap();
    let node = |peak: u32, bandwidth: u32, memory: u32| {
        format!(
            "[[nodes]]\ncount = 1\ncards = 4\nteraflops = {peak}\nmemory_bandwidth = \
             \"{bandwidth}GB\"\nmemory = \"{memory}GiB\"\n"
        )
    };
    let links = "[links]\ninside = \"300GB/s,3us\"\nbetween = \"25GB/s,8us\"\n";
    let file = |name: &str, slow: String| {
        let text = node(312, 2039, 80) + &slow + links;
        fs::write(folder.path().join(name), text).unwrap();
    };
    file("unequal.toml", node(156, 1019, 40));
    file("equal.toml", node(312, 2039, 80));
    let plan = |cluster: &str| {
        let args = [
            "plan",
            "--model-shape",
            "llama3-8b,layers=64,sequence=4096",
            "--cluster",
            cluster,
            "--batch",
            "64",
            "--tensor-parallel",
            "4",
            "--pipeline",
            "2",
            "--schedule",
            "1f1b",
            "--json",
        ];
        let output = gpipe_in(folder.path(), &args);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let (unequal, equal) = (plan("unequal.toml"), plan("equal.toml"));
    let layers = |plan: &Value| -> Vec<f64> {
        let balance = plan["balance"].as_array().unwrap();
        balance.iter().map(|own| own.as_f64().unwrap()).collect()
    };
    let (few, many) = (layers(&unequal), layers(&equal));
    let ratio = |own: &[f64]| {
        own.iter().copied().fold(0.0, f64::max) / own.iter().copied().fold(f64::MAX, f64::min)
    };
    assert!(ratio(&many) < 1.2, "{many:?}");
    assert!(ratio(&few) > 1.7, "{few:?}");
    // With equal stages the slow group would take twice as long as the fast one.
    let step = |plan: &Value| plan["step_us"].as_f64().unwrap();
    assert!(step(&unequal) < 1.7 * step(&equal));
}

#[test]
fn a_profile_is_scaled_by_what_was_measured_there() {
    let folder = tempdir().unwrap();
    let layer = |name: &str, us: f64| {
        json!({
            "name": name, "forward_us": us, "backward_input_us": us, "backward_weight_us": us,
            "parameter_bytes": 1000, "activation_bytes": 1000, "output_bytes": 100,
        })
    };
    let profile = |name: &str, device: &str, layers: &[Value]| {
        let value = json!({"version": 1, "device": device, "batch": 1, "layers": layers});
        fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    let all: Vec<Value> = (0..4).map(|i| layer(&format!("b.{i}"), 100.0)).collect();
    profile("here.json", "cpu", &all);
    profile(
        "there.json",
        "cuda",
        &[layer("b.0", 10.0), layer("b.1", 10.0)],
    );
    profile("other.json", "cuda", &[layer("x", 10.0)]);
    let plan = |flags: &[&str]| {
        let args = [
            "plan",
            "--profile",
            "here.json",
            "--devices",
            "2",
            "--micro",
            "4",
            "--json",
        ];
        gpipe_in(folder.path(), &[&args, flags].concat())
    };
    let step = |output| {
        let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
        plan["step_us"].as_f64().unwrap()
    };
    let scaled = plan(&["--scale-to", "there.json"]);
    let said = String::from_utf8_lossy(&scaled.stderr).into_owned();
    assert!(
        said.contains("2 of 4 layers that were measured on both"),
        "{said}"
    );
    assert!((step(scaled) * 10.0 / step(plan(&[])) - 1.0).abs() < 1e-9);
    let said = refused(&plan(&["--scale-to", "other.json"]), 2);
    assert!(said.contains("none of the 4 layers"), "{said}");
}
