//! `gpipe-rs plan` for a cluster.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{flat, folder_with_profile, gpipe_in, number, refused, stdout};
use crate::run::{gpipe, succeeded};

const FLAGS: &str = "--nodes 2 --per-node 2 --link-inside 10GB/s,5us --link-between 1GB/s,20us";

#[test]
fn replicas_and_places_are_chosen_and_can_be_fixed() {
    let folder = folder_with_profile();
    let run = |flags: &str| {
        let all = format!("plan --profile profile.json --batch 16 {flags}");
        let args: Vec<&str> = all.split_whitespace().collect();
        stdout(&gpipe_in(folder.path(), &args))
    };
    let plan: Value = serde_json::from_str(&run(&format!("{FLAGS} --json"))).unwrap();
    let (step, bound) = (number(&plan["step_us"]), number(&plan["lower_bound_us"]));
    assert!(bound <= step, "{plan}");
    assert!(plan["limit"].is_string(), "{plan}");
    assert_eq!(plan["more"][0]["what"], json!("one more node"));
    let fixed = run(&format!(
        "{FLAGS} --replicas 2 --pipeline 2 --neighbours stages --schedule 1f1b --json -o plan.json"
    ));
    let fixed: Value = serde_json::from_str(&fixed).unwrap();
    assert_eq!(fixed["replicas"], json!(2));
    assert_eq!(fixed["neighbours"], json!("stages"));
    assert_eq!(fixed["schedule"], json!("1f1b"));
    assert!(number(&fixed["step_us"]) >= step);
    let read = gpipe::partitioner::Plan::read(folder.path().join("plan.json")).unwrap();
    assert_eq!((read.replicas, read.devices()), (2, 2));
    let text = flat(&run(FLAGS));
    assert!(text.contains("with one more node: "), "{text}");
    // Regression test: the step was "within 36.2 % of whatever is the best", though at most 27 % could be
    // saved.
    let saved = 100.0 * (1.0 - bound / step);
    let told = if saved < 1e-7 {
        "no plan with a built-in schedule is faster".to_owned()
    } else {
        format!("could save at most {saved:.1} % of this step")
    };
    assert!(text.contains(&told), "{told}: {text}");
}

/// Regression test: the page was headed by the profiled CPU and did not give the assumed speed of the cards.
#[test]
fn the_page_of_a_measured_model_names_the_cards_and_what_is_taken_of_them() {
    let folder = folder_with_profile();
    let plan = "plan --profile profile.json --cluster rtx-4090 --nodes 2 --batch 64 --micro-size 1 \
                --replicas 2 --report page.html";
    let args: Vec<&str> = plan.split_whitespace().collect();
    let output = gpipe_in(folder.path(), &args);
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains(" cards of rtx-4090<"), "{page}");
    let taken = "each card is taken to be as fast as that was";
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains(taken) && page.contains(taken), "{errors}");
    // `train` follows such a plan, but its gradient exchange differs from the priced one.
    let direct = "`train` sends gradients directly";
    assert!(flat(&stdout(&output)).contains(direct));
    let args: Vec<&str> = args.into_iter().chain(["--all-reduce", "direct"]).collect();
    assert!(!flat(&stdout(&gpipe_in(folder.path(), &args))).contains(direct));
}

/// Regression test: replica counts that `train` refuses were planned without a note.
#[test]
fn replicas_that_train_refuses_are_told() {
    let line = "plan --model-shape gpt2 --cluster dgx-h100 --batch 6 --replicas";
    let text = |replicas: &str| {
        let folder = tempfile::tempdir().unwrap();
        let args: Vec<&str> = line.split(' ').chain([replicas]).collect();
        flat(&stdout(&gpipe_in(folder.path(), &args)))
    };
    let three = text("3");
    let wanted =
        "`train` needs a power of two of replicas and refuses this plan: --replicas 2 plans for it";
    assert!(three.contains(wanted), "{three}");
    assert!(!text("2").contains(" power of two of replicas"));
}

/// On one node all kinds of neighbours are the same: the flag must not exclude every plan.
#[test]
fn neighbours_may_be_fixed_where_they_are_the_same() {
    let folder = folder_with_profile();
    let args =
        "plan --profile profile.json --per-node 4 --batch 16 --replicas 2 --pipeline 2 --json";
    let run = |neighbours: &str| {
        let args: Vec<&str> = args.split_whitespace().collect();
        let own = [&args[..], &["--neighbours", neighbours]].concat();
        let plan: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &own))).unwrap();
        plan["step_us"].clone()
    };
    assert_eq!(run("stages"), run("replicas"));
}

#[test]
fn ready_made_nodes_and_files_are_clusters() {
    let folder = folder_with_profile();
    let file = "
[[nodes]]
count = 1
cards = 2
[[nodes]]
count = 1
cards = 2
speed = 0.5
memory = \"2GiB\"
[links]
between = \"1GB/s,20us\"
";
    fs::write(folder.path().join("cluster.toml"), file).unwrap();
    for cluster in ["cluster.toml", "rtx-4090", "dgx-h100 --nodes 2"] {
        let all = format!("plan --profile profile.json --batch 32 --json --cluster {cluster}");
        let args: Vec<&str> = all.split_whitespace().collect();
        let plan: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &args))).unwrap();
        assert!(number(&plan["step_us"]) > 0.0, "{cluster}: {plan}");
    }
}

/// Regression test: unrequested runners-up were listed above the cards' combined speed.
#[test]
fn a_cluster_plan_names_runners_up_where_they_are_asked_for() {
    let folder = folder_with_profile();
    let text = |more: &str| {
        let all = format!("plan --profile profile.json --batch 16 {FLAGS}{more}");
        let args: Vec<&str> = all.split_whitespace().collect();
        stdout(&gpipe_in(folder.path(), &args))
    };
    let (short, long) = (text(""), text(" --explain"));
    assert!(!short.contains("runner-up"), "{short}");
    assert!(long.contains("runner-up"), "{long}");
    let first = short.lines().next().unwrap();
    assert!(first.ends_with(" samples/s"), "{short}");
    let told = "memory without a limit: the fullest card has ";
    assert!(short.lines().nth(1).unwrap().starts_with(told), "{short}");
}

/// Regression test: cards were silently planned at the speed of the measured CPU.
#[test]
fn cards_that_are_as_fast_as_a_cpu_are_told_of() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let plan = "plan --profile examples/data/profiles/gpt.json --cluster rtx-4090 --batch 16";
    for (more, told) in [("", true), (" --speed 20", false)] {
        let plan = format!("{plan}{more}");
        let (_, errors) = succeeded(gpipe(root, &plan), &plan);
        let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        let note = "note: the profile was measured on a CPU, and each card is taken to be as fast";
        assert_eq!(errors.contains(note), told, "{errors}");
    }
}

#[test]
fn what_does_not_fit_says_what_would() {
    let folder = folder_with_profile();
    let args = "plan --profile profile.json --per-node 2 --batch 8 --memory 8MiB";
    let args: Vec<&str> = args.split_whitespace().collect();
    let error = refused(&gpipe_in(folder.path(), &args), 1);
    assert!(error.contains("nothing fits 2 cards of 8.0 MiB"), "{error}");
    assert!(error.contains(" MiB more on each"), "{error}");
    // The immediate finding is printed before the search for a sufficient cluster.
    assert!(error.starts_with("nothing fits: parameters, "), "{error}");
    assert!(
        error.contains("2 cards have 16.0 MiB together; looking for"),
        "{error}"
    );
}

#[test]
fn wrong_clusters_are_told_with_what_to_do() {
    let folder = folder_with_profile();
    for (flags, hint) in [
        ("", "--devices <LIST>"),
        (
            "--per-node 2 --devices 4",
            "a cluster, instead of --devices",
        ),
        ("--per-node 2 --cores 2", "cannot be used with"),
        ("--nodes 2 --per-node 2", "2 nodes need a link between them"),
        ("--cluster dgx-a10", "did you mean `dgx-a100`?"),
        // The suggestion must name the cluster that has such cards.
        ("--cluster h100", "did you mean `dgx-h100`?"),
        (
            "--per-node 2 --memory-reserve 1GiB",
            "no memory is limited: give --memory too",
        ),
        (
            "--per-node 2 --memory 1GiB --memory-reserve 2GiB",
            "a device has 1.0 GiB, and nothing would be left of it",
        ),
        ("--devices 2 --memory-reserve 1GiB", "no memory is limited"),
        (
            "--per-node 2 --tokens 300B",
            "Tokens that a --model-shape is to be trained on",
        ),
        ("--cluster none.toml", "none.toml: cannot be opened"),
        (
            "--per-node 2 --memory 1GiB,2GiB",
            "unequal cards are described in a file",
        ),
        ("--per-node 2 --replicas 3", "the cluster has 2 cards"),
        (
            "--per-node 3 --replicas 3",
            "3 replicas: there is a power of two of them, such as 4",
        ),
        ("--per-node 0", "must be at least 1"),
        ("--per-node 2 --neighbours none", "one of replicas, stages"),
    ] {
        let all = format!("plan --profile profile.json {flags}");
        let args: Vec<&str> = all.split_whitespace().collect();
        let error = refused(&gpipe_in(folder.path(), &args), 2);
        assert!(error.contains(hint), "{flags}: {error}");
    }
}

/// Regression test: a plan of single devices split its backwards because the step was shorter by the last bit
/// of an `f64`.
#[test]
fn of_equal_plans_the_one_with_the_simpler_schedule_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let args = "plan --model-shape llama2-7b --cluster dgx-h100 --json";
    let args: Vec<&str> = args.split_whitespace().collect();
    let plan: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &args))).unwrap();
    assert_eq!(plan["placement"], json!(vec![0; 3]), "{plan}");
    assert_eq!(plan["schedule"], "interleaved-1f1b", "{plan}");
}
