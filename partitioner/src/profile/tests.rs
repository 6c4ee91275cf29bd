use proptest::prelude::*;

use super::*;

fn micros(value: f64) -> Micros {
    Micros::new(value).unwrap()
}

fn sample() -> Profile {
    let times = LayerTimes::new(micros(100.5), micros(120.0), micros(0.1));
    let mut second = times;
    second.backward = Some(micros(200.0));
    second.recompute = Some(micros(90.0));
    let small = Footprint {
        after_input: Some(Bytes(3)),
        temporary: Bytes(5),
        ..Footprint::default()
    };
    let layers = vec![
        LayerProfile::new("embed", times).with_bytes(Bytes(4096), Bytes(1 << 20), Bytes(512)),
        LayerProfile::new("head \"x\"", second)
            .with_temporary(Bytes(77))
            .with_loss(Bytes(9))
            .with_spread(Spread::new(9, 0.25, 0.5))
            .with_halves_temporary(Bytes(70), Bytes(60))
            .with_curve(vec![(16, times), (2, times)])
            .with_footprints(vec![(2, small)])
            .with_host(second)
            .without_graphs("it draws random numbers"),
    ];
    Profile::new("cpu", 8, layers)
        .unwrap()
        .with_input(Bytes(64))
        .with_origin(Some("2.11.0".into()), None)
        .with_link("25GB/s,5us".parse().unwrap())
        .with_host_link(HostLink {
            to_host: "20GB/s,9us".parse().unwrap(),
            to_device: "22GB/s,8us".parse().unwrap(),
        })
        .with_graph_replay(micros(17.5))
        .with_model(ModelId::new("gpt", [("layers", 2.0), ("dropout", 0.1)]))
}

#[test]
fn a_profile_survives_writing_and_reading() {
    let profile = sample();
    let text = profile.to_json();
    assert_eq!(Profile::from_json(&text, "p").unwrap(), profile);
    // Layers are written one per line, so that a diff of two profiles is readable.
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("\"forward_us\""))
            .count(),
        2
    );
}

/// Returns the error of the sample with `from` replaced by `to`.
fn broken(from: &str, to: &str) -> String {
    let text = sample().to_json();
    assert!(text.contains(from), "{from} is not in {text}");
    let error = Profile::from_json(text.replacen(from, to, 1), "p.json").unwrap_err();
    error.to_string()
}

#[test]
fn errors_name_file_field_and_rule() {
    let time = "must be a number from 0 to 1000000000000, is";
    for (from, to, message) in [
        ("100.5", "-4", format!("layers[0].forward_us: {time} -4")),
        (
            "100.5",
            "1e18",
            format!("layers[0].forward_us: {time} 1e18"),
        ),
        (
            "100.5",
            "\"x\"",
            format!("layers[0].forward_us: {time} the text \"x\""),
        ),
        (
            "100.5",
            "null",
            format!("layers[0].forward_us: {time} null"),
        ),
        (
            "4096",
            "1.5",
            format!(
                "layers[0].parameter_bytes: must be a whole number from 0 to {MAX_BYTES}, is 1.5"
            ),
        ),
        (
            "4096",
            "1000000000000000000",
            format!(
                "layers[0].parameter_bytes: must be a whole number from 0 to {MAX_BYTES}, is 1000000000000000000"
            ),
        ),
        (
            "\"batch\":16",
            "\"batch\":1",
            "layers[1].curve[1].batch: must be larger".into(),
        ),
        (
            "\"batch\":16",
            "\"batch\":8",
            "layers[1].curve[1].batch: must be larger".into(),
        ),
        (
            "\"batch\": 8",
            "\"batch\": 0",
            "batch: must be a whole number from 1 to 16777216, is 0".into(),
        ),
        ("\"batch\": 8,", "", "batch: is missing".into()),
        (
            "\"batch\": 8",
            "\"size\": 8",
            "size: is not a field here; there are version, device, batch".into(),
        ),
        (
            "\"device\"",
            "\"colour\": 1, \"device\"",
            "colour: is not a field here; there are version, device, batch".into(),
        ),
        (
            "\"forward_us\":100.5,",
            "",
            "layers[0].forward_us: is missing".into(),
        ),
        (
            "forward_us",
            "forwards_us",
            "layers[0].forwards_us: is not a field here; there are name, forward_us".into(),
        ),
        (
            "\"name\":\"embed\"",
            "\"name\":\"embed\",\"flops\":3",
            "layers[0].flops: is not a field here".into(),
        ),
        (
            "\"device\"",
            "\"batch\": 3, \"device\"",
            "batch: is given twice".into(),
        ),
        (
            "\"version\": 1",
            "\"version\": 2",
            "version: 2 is not a version that this build reads; it reads 1".into(),
        ),
        (
            "\"version\": 1,",
            "",
            "version: is missing; it is no profile".into(),
        ),
    ] {
        let error = broken(from, to);
        assert!(
            error.starts_with(&format!("p.json: {message}")),
            "{to}: {error}"
        );
    }
}

#[test]
fn links_and_spreads_are_checked_too() {
    for (from, to, message) in [
        (
            "25000000000",
            "0",
            format!("link.bytes_per_second: must be a whole number from 1 to {MAX_BYTES}, is 0"),
        ),
        (
            "\"latency_us\":5.0",
            "\"delay\":5.0",
            "link.delay: is not a field here; there are latency_us".into(),
        ),
        (
            "\"latency_us\":5.0",
            "\"bytes_per_second\":1",
            "link.bytes_per_second: is given twice".into(),
        ),
        (
            "\"bytes_per_second\":22000000000",
            "\"bytes_per_second\":0",
            format!(
                "host_link.to_device.bytes_per_second: must be a whole number from 1 to {MAX_BYTES}"
            ),
        ),
        (
            "\"graph_replay_us\": 17.5",
            "\"graph_replay_us\": -1",
            "graph_replay_us: must be a number from 0".into(),
        ),
        (
            "\"forward_spread\":0.25,",
            "",
            "layers[1].forward_spread: is missing".into(),
        ),
        (
            "\"repeats\":9,",
            "",
            "layers[1].forward_spread: must come with repeats".into(),
        ),
        (
            "0.25",
            "-0.25",
            "layers[1].forward_spread: must be a number from 0 to 1000000, is -0.25".into(),
        ),
    ] {
        let error = broken(from, to);
        assert!(
            error.starts_with(&format!("p.json: {message}")),
            "{to}: {error}"
        );
    }
}

#[test]
fn what_older_files_lack_is_not_known() {
    let layer = LayerProfile::new("x", LayerTimes::default());
    let profile = Profile::new("cpu", 1, vec![layer]).unwrap();
    let text = profile.to_json();
    for field in ["link", "repeats", "spread"] {
        assert!(!text.contains(field), "{text}");
    }
    let read = Profile::from_json(&text, "p").unwrap();
    assert_eq!((read.link(), read.layers()[0].spread), (None, None));
}

#[test]
fn syntax_errors_name_the_field_too() {
    for bad in ["NaN", "Infinity", "-Infinity", "1e999", "tru", "+1"] {
        let error = broken("100.5", bad);
        assert!(
            error.starts_with("p.json: layers[0].forward_us: "),
            "{error}"
        );
    }
}

#[test]
fn every_truncation_is_an_error() {
    let text = sample().to_json();
    for end in 0..text.trim_end().len() {
        let cut = text.as_bytes()[..end].to_vec();
        assert!(Profile::from_json(cut, "p").is_err(), "{end}");
    }
    assert!(Profile::from_json(text + "x", "p").is_err());
}

#[test]
fn deep_wide_and_long_input_is_refused() {
    let deep = "[".repeat(100_000);
    assert!(Profile::from_json(deep, "p").is_err());
    let wide: Vec<String> = (0..100).map(|i| format!("\"f{i}\":0,")).collect();
    let wide = wide.concat();
    let error = Profile::from_json(format!("{{{wide}\"version\":1}}"), "p").unwrap_err();
    assert!(
        error.to_string().starts_with("p: f0: is not a field here"),
        "{error}"
    );
    let points = "{\"batch\":1,\"forward_us\":1,\"backward_input_us\":1,\"backward_weight_us\":1},";
    let points = points.repeat(MAX_POINTS + 1);
    let error = broken(
        "\"name\":\"embed\"",
        &format!("\"curve\":[{points}0],\"name\":\"embed\""),
    );
    assert!(
        error.starts_with("p.json: layers[0].curve: must have from 0 to 64 entries"),
        "{error}"
    );
    let long = format!("[{}0]", "0,".repeat(4_000_000));
    let error = Profile::from_json(long, "p").unwrap_err();
    assert!(
        error.to_string().contains("must be an object, is a list"),
        "{error}"
    );
}

/// A text in a file, or a name that is no field, may be as long as the file.
#[test]
fn errors_are_short_and_without_control_characters() {
    let long = "x\\u001b".repeat(100_000);
    for (from, to) in [
        ("100.5", format!("\"{long}\"")),
        ("\"device\"", format!("\"{long}\":1,\"device\"")),
        ("\"width\"", format!("\"{long}\"")),
        ("\"cpu\"", format!("\"{long}\"")),
    ] {
        let text = sample().to_json().replacen("layers\":2", "width\":2", 1);
        let error = Profile::from_json(text.replacen(from, &to, 1), "p.json");
        let Err(error) = error else { continue };
        let error = error.to_string();
        assert!(error.len() < 2000, "{} bytes", error.len());
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn sums_stay_far_from_overflow() {
    let layer = LayerProfile::new("x", LayerTimes::default()).with_bytes(
        Bytes(MAX_BYTES),
        Bytes::ZERO,
        Bytes::ZERO,
    );
    let error = Profile::new("cpu", 1, vec![layer; 9]).unwrap_err();
    assert!(
        error.to_string().contains("parameter_bytes of all layers"),
        "{error}"
    );
    assert!(Profile::new("cpu", 1, vec![]).is_err());
    assert!(Profile::new("cpu", 0, vec![LayerProfile::default()]).is_err());
}

#[test]
fn times_scale_linearly_without_a_curve() {
    let costs = sample().costs(4);
    assert_eq!(costs[0].forward, micros(50.25));
    assert_eq!(costs[0].backward, micros(60.05));
    assert_eq!(costs[0].recompute, costs[0].forward);
    assert_eq!(costs[0].activations, Bytes(1 << 19));
    assert_eq!(costs[0].parameters, Bytes(4096));
    assert_eq!(costs[0].temporary, Bytes(0));
}

#[test]
fn times_follow_the_curve() {
    let flat = |us: f64| LayerTimes::new(micros(us), micros(us), micros(us));
    let layer = LayerProfile::new("x", flat(100.0)).with_curve(vec![
        (4, flat(80.0)),
        (16, flat(180.0)),
        (32, flat(500.0)),
    ]);
    let profile = Profile::new("cpu", 8, vec![layer]).unwrap();
    let forward = |batch| profile.costs(batch)[0].forward.get();
    assert_eq!(
        [4, 6, 8, 12, 16].map(forward),
        [80.0, 90.0, 100.0, 140.0, 180.0]
    );
    // Extrapolated below and above.
    assert_eq!([2, 48].map(forward), [70.0, 820.0]);
}

#[test]
fn bytes_follow_the_curve() {
    let flat = LayerTimes::new(micros(1.0), micros(1.0), micros(1.0));
    let of = |activations, temporary| Footprint {
        activations: Bytes(activations),
        temporary: Bytes(temporary),
        ..Footprint::default()
    };
    // A gradient of 1000 bytes, and 3 bytes per sample.
    let layer = LayerProfile::new("x", flat)
        .with_bytes(Bytes(1000), Bytes(80), Bytes(8))
        .with_temporary(Bytes(1024))
        .with_curve(vec![(2, flat), (4, flat)])
        .with_footprints(vec![(2, of(20, 1006))]);
    let profile = Profile::new("cpu", 8, vec![layer.clone()]).unwrap();
    let bytes = |batch| {
        let cost = &profile.costs(batch)[0];
        (cost.activations.0, cost.temporary.0)
    };
    assert_eq!([2, 4, 8].map(bytes), [(20, 1006), (40, 1012), (80, 1024)]);
    assert_eq!([1, 16].map(bytes), [(10, 1003), (160, 1048)]);
    let lost = layer.with_footprints(vec![(3, of(1, 1))]);
    let error = Profile::new("cpu", 8, vec![lost]).unwrap_err();
    assert!(error.to_string().contains("bytes for 3 samples"), "{error}");
}

#[test]
fn the_same_layers_on_all_cores_are_written_and_read() {
    let plain = sample();
    let mut layers = plain.layers().to_vec();
    layers[0].times = LayerTimes::default();
    let own = plain.clone().with_all_cores(4, layers.clone()).unwrap();
    let read = Profile::from_json(own.to_json(), "p").unwrap();
    assert_eq!((read.all_cores(), plain.all_cores()), (Some(4), None));
    assert_eq!(read.on_all_cores().unwrap().layers(), layers);
    assert_eq!(read, own);
    layers[0].name = "another".to_owned();
    let error = plain.with_all_cores(4, layers).unwrap_err().to_string();
    assert!(
        error.contains("all_cores.layers: must be the layers of the profile"),
        "{error}"
    );
}

proptest! {
    /// Any damage to the text gives an error or another valid profile, but no panic.
    #[test]
    fn damaged_text_never_panics(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0..3), 1..6),
    ) {
        let mut text = sample().to_json().into_bytes();
        for (index, byte, how) in edits {
            let at = index.index(text.len());
            match how {
                0 => text[at] = byte,
                1 => { text.remove(at); }
                _ => text.insert(at, byte),
            }
        }
        if let Ok(profile) = Profile::from_json(&text, "p") {
            let again = Profile::from_json(profile.to_json(), "p");
            prop_assert_eq!(again, Ok(profile));
        }
    }

    /// Measurements survive writing and reading unchanged.
    #[test]
    fn links_and_spreads_survive_writing_and_reading(
        bandwidth in proptest::option::of(any::<u64>()),
        latency in 0.0_f64..1e13,
        repeats in any::<usize>(),
        (forward, backward) in (any::<f64>(), -1.0..1e7),
    ) {
        let latency = micros(latency);
        let link = bandwidth.and_then(|bytes| Link::new(Bytes(bytes), latency).ok());
        let link = link.unwrap_or_else(|| Link::without_copy(latency));
        let spread = Spread::new(repeats, forward, backward);
        let layer = LayerProfile::new("x", LayerTimes::default()).with_spread(spread);
        let profile = Profile::new("cpu", 1, vec![layer]).unwrap().with_link(link);
        let read = Profile::from_json(profile.to_json(), "p");
        prop_assert_eq!(read, Ok(profile));
    }

    /// Any value in any field gives an error or a valid profile.
    #[test]
    fn strange_values_never_panic(
        field in 0_usize..40,
        value in prop_oneof![
            Just("1e18".to_owned()), Just("-1".to_owned()), Just("1e308".to_owned()),
            Just("[]".to_owned()), Just("{}".to_owned()), Just("18446744073709551615".to_owned()),
            Just("\"\\u0000\"".to_owned()), any::<f64>().prop_map(|x| x.to_string()),
            any::<u64>().prop_map(|x| x.to_string()),
        ],
    ) {
        let text = sample().to_json();
        let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
        let start = colons[field % colons.len()];
        let length = text[start..].find([',', '}', '\n']).unwrap();
        let text = format!("{}{value}{}", &text[..start], &text[start + length..]);
        if let Ok(profile) = Profile::from_json(&text, "p") {
            let _ = profile.costs(MAX_BATCH);
        }
    }
}
