//! `plan` prints its limit, its doubts, and what does not fit.

use std::fs;

use serde_json::{Value, json};

use super::{folder_with_profile, gpipe_in, refused, said, stdout};

/// A profile of layers with these times in milliseconds: forward, input gradient, weight gradient, joint
/// backward.
fn of_layers(times: &[(f64, f64, f64, f64)]) -> Value {
    let layer = |(index, time): (usize, &(f64, f64, f64, f64))| {
        json!({
            "name": format!("hidden.{index}"), "forward_us": time.0 * 1e3,
            "backward_input_us": time.1 * 1e3, "backward_weight_us": time.2 * 1e3,
            "backward_us": time.3 * 1e3, "parameter_bytes": 1 << 20,
            "activation_bytes": 1 << 20, "output_bytes": 1 << 10,
        })
    };
    let layers: Vec<Value> = times.iter().enumerate().map(layer).collect();
    json!({"version": 1, "device": "cpu", "batch": 8, "layers": layers})
}

/// Output of `plan` for a profile, and its `limit` entry as one line.
fn planned(profile: &Value, flags: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    let mut args = vec!["plan", "--profile", "profile.json"];
    args.extend(flags.split_whitespace());
    let text = stdout(&gpipe_in(folder.path(), &args));
    let limit = said(&text, "limit");
    (text, limit)
}

/// The last number before `word`.
fn before(text: &str, word: &str) -> f64 {
    let (head, _) = text
        .split_once(word)
        .unwrap_or_else(|| panic!("{word}: {text}"));
    head.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The limit must be derived from the backward times that the schedule uses. The joint backward's time used
/// to count for split schedules too, so an outlier in it made an ordinary layer the limit; and `plan` did not
/// print the limit at all.
#[test]
fn the_limit_is_told_from_the_times_that_the_plan_is_made_of() {
    let mut times = [(1.0, 0.6, 0.7, 1.3); 4];
    times[3].3 = 10.6;
    let profile = of_layers(&times);
    let flags = "--devices 2 --micro 16 --schedule zb-h2 --chunks 1";
    let (text, limit) = planned(&profile, flags);
    assert!(before(&text, " %, slowest") < 10.0, "{text}");
    assert!(limit.starts_with("compute-bound: "), "{limit}");
    // With a joint backward the layer is an outlier.
    let (text, limit) = planned(&profile, &flags.replace("zb-h2", "1f1b"));
    assert!(limit.starts_with("unbalanced: "), "{limit}");
    assert!(
        limit.contains("layer `hidden.3` alone takes 11.60 ms"),
        "{limit}"
    );
    assert!(before(&limit, " % of the step") <= before(&text, " %, slowest"));
}

#[test]
fn advice_is_given_only_where_it_can_be_followed() {
    // Six blocks over four devices: no block is a bottleneck, and none can be split.
    let blocks = of_layers(&[(1.0, 1.0, 1.0, 2.0); 6]);
    let flags = "--devices 4 --micro 32 --schedule 1f1b --chunks 1";
    let (_, limit) = planned(&blocks, flags);
    assert!(
        limit.starts_with("unbalanced: device 0 computes 6.00 ms"),
        "{limit}"
    );
    assert!(limit.contains("the mean is 4.50 ms"), "{limit}");
    assert!(
        limit.contains("another number of devices or of layers"),
        "{limit}"
    );
    assert!(!limit.contains("smaller layers"), "{limit}");
    let (_, limit) = planned(&blocks, &format!("{flags} --memory 2GiB"));
    assert!(!limit.contains("--memory"), "{limit}");
    let (_, limit) = planned(&blocks, &format!("{flags} --memory 20MiB"));
    assert!(limit.ends_with("or more --memory"), "{limit}");
    // Each of two large blocks exceeds an even share.
    let mut times = [(1.0, 1.0, 1.0, 2.0); 4];
    times[1..3].fill((4.0, 4.0, 4.0, 8.0));
    let (_, limit) = planned(&of_layers(&times), flags);
    assert!(
        limit.contains("layers such as `hidden.1` take 12.00 ms each"),
        "{limit}"
    );
    // The largest block fits a fast device.
    times[2] = times[0];
    let (_, limit) = planned(&of_layers(&times), &format!("{flags} --speed 1,5,1,1"));
    assert!(!limit.starts_with("unbalanced"), "{limit}");
}

/// Regression test: one sixth of idle time was called "compute-bound", which means that devices hardly ever
/// idle.
#[test]
fn devices_that_idle_are_not_called_busy() {
    let even = of_layers(&[(1.0, 1.0, 1.0, 2.0); 8]);
    let flags = "--devices 2 --schedule 1f1b --chunks 1 --micro";
    let (text, limit) = planned(&even, &format!("{flags} 5"));
    assert!(text.contains("bubble 16.7 %"), "{text}");
    assert!(
        limit.starts_with("bubble-bound: devices idle 16.7 % of"),
        "{limit}"
    );
    let (_, limit) = planned(&even, &format!("{flags} 32"));
    assert!(
        limit.starts_with("compute-bound: devices compute 97 % of"),
        "{limit}"
    );
}

/// Regression test: the gain from free transfers was computed for equally fast devices.
#[test]
fn slow_devices_are_no_slow_link() {
    let even = of_layers(&[(1.0, 1.0, 1.0, 2.0); 8]);
    let flags = "--devices 2 --micro 16 --schedule 1f1b --chunks 1 --link 100GB/s,1us";
    let (_, limit) = planned(&even, &format!("{flags} --speed 0.25"));
    assert!(!limit.starts_with("transfer-bound"), "{limit}");
    let (_, limit) = planned(&even, &flags.replace("100GB/s,1us", "100kB/s,1us"));
    assert!(limit.starts_with("transfer-bound"), "{limit}");
}

/// Regression test: no file had the doubts about a profile, so `plan` and `train --plan` could not repeat
/// them.
#[test]
fn doubts_go_with_the_profile_into_the_plan_and_its_page() {
    let mut profile = of_layers(&[(1.0, 1.0, 1.0, 2.0); 4]);
    profile["doubts"] = json!(["layer `hidden.1` is noisy (\u{b1}70 %)"]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    let args = "plan --profile profile.json --devices 2 --batch 8 -o plan.json --report page.html";
    let args: Vec<&str> = args.split(' ').collect();
    let output = gpipe_in(folder.path(), &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("note: of the profile: layer `hidden.1` is noisy"),
        "{errors}"
    );
    let plan = gpipe::partitioner::Plan::read(folder.path().join("plan.json")).unwrap();
    assert_eq!(plan.doubts, ["layer `hidden.1` is noisy (\u{b1}70 %)"]);
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(
        page.contains("<li>layer <code>hidden.1</code> is noisy"),
        "{page}"
    );
    // A profile that was checked without findings, and one that was not checked.
    for (doubts, said) in [
        (Some(json!([])), "Nothing was seen that speaks against"),
        (None, "does not tell how far its measurements are apart"),
    ] {
        let mut profile = of_layers(&[(1.0, 1.0, 1.0, 2.0); 4]);
        if let Some(doubts) = doubts {
            profile["doubts"] = doubts;
        }
        fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
        let output = gpipe_in(folder.path(), &args);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("note: "));
        let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
        assert!(page.contains(said), "{said}");
    }
}

/// Regression test: the error was the parser's own, "expected value at line 1 column 1".
#[test]
fn a_file_that_is_no_json_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.txt"), "The whale").unwrap();
    let args = "plan --profile mine.txt --devices 2";
    let args: Vec<&str> = args.split(' ').collect();
    let message = refused(&gpipe_in(folder.path(), &args), 2);
    assert!(
        message.starts_with("error: --profile mine.txt: is not JSON (expected value at line 1"),
        "{message}"
    );
}

/// Regression test: the output had `1 micro-batches of 1 samples`, and byte counts without a unit.
#[test]
fn one_is_singular_and_missing_bytes_have_a_unit() {
    let profile = of_layers(&[(1.0, 1.0, 1.0, 2.0); 4]);
    let flags = "--devices 1 --batch 1 --micro 1 --schedule gpipe";
    let (text, _) = planned(&profile, flags);
    assert!(
        text.starts_with("gpipe: 1 device, 1 micro-batch of 1 sample\n"),
        "{text}"
    );
    let folder = folder_with_profile();
    let args = "plan --profile profile.json --devices 2 --memory 16MiB --schedule gpipe";
    let args: Vec<&str> = args.split(' ').collect();
    let message = refused(&gpipe_in(folder.path(), &args), 1);
    let (_, more) = message.split_once("it fits with ").unwrap();
    assert!(
        more.contains("MiB more on device") && !more.contains("bytes"),
        "{more}"
    );
    // The amount that the message names is sufficient.
    let (amount, _) = more.split_once(" MiB").unwrap();
    let enough = format!("{:.1}MiB", 16.0 + amount.parse::<f64>().unwrap());
    let args: Vec<&str> = args
        .into_iter()
        .map(|arg| if arg == "16MiB" { &*enough } else { arg })
        .collect();
    let output = gpipe_in(folder.path(), &args);
    assert!(output.status.success(), "{output:?}");
}

/// With one stage per device looped-bfs equals gpipe and interleaved-zb equals zb-h1; runners-up must not be
/// listed twice.
#[test]
fn runners_up_are_listed_under_one_name() {
    let profile = of_layers(&[(1.0, 1.0, 1.0, 2.0); 4]);
    let (text, _) = planned(&profile, "--devices 4 --micro 8 --explain");
    let (_, table) = text.split_once("runner-up").unwrap();
    for name in ["looped-bfs", "interleaved-zb"] {
        assert!(!table.contains(name), "{text}");
    }
    assert!(table.contains("gpipe"), "{text}");
}
