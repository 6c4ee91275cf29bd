//! Files that are refused, with name and place.

use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{Pipeline, models};
use serde_json::{Value, json};

use crate::fixture::path;
use crate::forged::{Zip, refusal};
use crate::support::single_threaded;

#[track_caller]
fn assert_refused(zip: &Zip, parts: &[&str]) {
    let said = refusal(zip.bytes()).expect("it should be refused");
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

fn node(number: usize, change: impl FnOnce(&mut Value)) -> Zip {
    Zip::open("mlp")
        .program(|program| change(&mut program["graph_module"]["graph"]["nodes"][number]))
}

#[test]
fn other_versions_are_refused() {
    let zip = Zip::open("mlp").program(|program| program["schema_version"]["minor"] = json!(18));
    assert_refused(&zip, &["8.18", "8.17", "PyTorch 2.11"]);
    let zip = Zip::open("mlp").program(|program| program["schema_version"]["major"] = json!(9));
    assert_refused(&zip, &["9.17"]);
    for (entry, value) in [
        ("archive_format", "xyz"),
        ("archive_version", "1"),
        ("byteorder", "big"),
    ] {
        let mut zip = Zip::open("mlp");
        *zip.entry(entry) = value.as_bytes().to_vec();
        assert_refused(&zip, &[entry, value]);
    }
    let zip = Zip::open("mlp").program(|program| program["verifiers"] = json!(["ATEN"]));
    assert_refused(&zip, &["run_decompositions"]);
}

#[test]
fn operators_and_arguments_are_refused_by_their_place() {
    let place = ["module `0`", "torch.nn.modules.linear.Linear"];
    let zip = node(0, |node| {
        node["target"] = json!("torch.ops.vision.nms.default")
    });
    assert_refused(&zip, &["vision.nms", place[0], place[1]]);
    let zip = node(0, |node| {
        node["target"] = json!("torch.ops.aten.lynear.default")
    });
    assert_refused(&zip, &["aten::lynear.default", place[0], place[1]]);
    let zip = node(0, |node| {
        node["target"] = json!("torch.ops.aten.from_file.default")
    });
    assert_refused(&zip, &["not allowed", place[0]]);
    let zip = node(0, |node| {
        node["target"] = json!("torch.ops.higher_order.cond")
    });
    assert_refused(&zip, &["`cond`", place[0]]);
    let zip = node(0, |node| {
        node["inputs"][0]["arg"] = json!({"as_custom_obj": {}})
    });
    assert_refused(&zip, &["as_custom_obj", "`input`", place[0]]);
    let zip = node(0, |node| {
        node["inputs"][0]["arg"] = json!({"as_string": "x"})
    });
    assert_refused(&zip, &["`input`", "a text", place[0]]);
    let zip = node(0, |node| node["inputs"][0]["name"] = json!("weightless"));
    assert_refused(&zip, &["weightless", place[0]]);
    let zip = node(0, |node| {
        node["inputs"][0]["arg"]["as_tensor"]["name"] = json!("linear_2")
    });
    assert_refused(&zip, &["nothing before it makes", place[0]]);
}

#[test]
fn forged_tensors_are_refused_before_memory_is_taken() {
    let weights = |change: fn(&mut Value)| {
        let mut zip = Zip::open("mlp");
        zip.json("_weights_config.json", |config| {
            change(&mut config["config"]["0.weight"])
        });
        zip
    };
    let zip = weights(|own| own["tensor_meta"]["sizes"][0]["as_int"] = json!(1i64 << 40));
    assert_refused(&zip, &["`0.weight`", "1099511627776", "holds 128 elements"]);
    let zip = weights(|own| own["tensor_meta"]["storage_offset"]["as_int"] = json!(1));
    assert_refused(&zip, &["offset 1"]);
    let zip = weights(|own| own["tensor_meta"]["strides"][0]["as_int"] = json!(i64::MAX));
    assert_refused(&zip, &["`0.weight`"]);
    let zip = weights(|own| own["path_name"] = json!("../../models/model.json"));
    assert_refused(&zip, &["../../models/model.json", "does not have it"]);
    let zip = weights(|own| own["use_pickle"] = json!(true));
    assert_refused(&zip, &["`0.weight`", "pickled"]);
    let mut zip = Zip::open("mlp");
    zip.0.retain(|(name, _)| !name.ends_with("weight_0"));
    assert_refused(&zip, &["weight_0"]);
    assert!(
        refusal(b"no zip".to_vec())
            .unwrap()
            .contains("torch.export")
    );
    let error = models::exported("/nowhere/model.pt2").unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/model.pt2: "),
        "{error}"
    );
}

/// Position of an entry's record in the directory.
fn record(bytes: &[u8], entry: &str) -> usize {
    let all = bytes.windows(4).enumerate();
    let mut all = all.filter(|(_, own)| own == b"PK\x01\x02");
    let found = all.find(|(at, _)| bytes[at + 46..].starts_with(entry.as_bytes()));
    found.unwrap().0
}

/// The error for a file whose directory record of the first weight is changed.
fn with_record(change: impl FnOnce(&mut [u8])) -> String {
    let mut bytes = Zip::open("mlp").bytes();
    let at = record(&bytes, "mlp/data/weights/weight_0");
    change(&mut bytes[at..]);
    refusal_when_built(bytes).expect("it should be refused")
}

/// Like [`refusal`], but reads the weights.
fn refusal_when_built(bytes: Vec<u8>) -> Option<String> {
    let model = match models::exported_bytes(bytes) {
        Ok(model) => model,
        Err(error) => return Some(error.to_string()),
    };
    let built = Pipeline::new(model, &[Device::Cpu], 1);
    built
        .err()
        .map(|error| format!("{:#}", anyhow::Error::from(error)))
}

#[test]
fn forged_directories_are_refused_by_name() {
    assert!(refusal_when_built(Zip::open("mlp").bytes()).is_none());
    let place = |bytes: &mut [u8], at: usize, number: u32| {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    };
    // Sizes: larger than the file, smaller than the tensor, falsely declared as compressed.
    let said = with_record(|own| {
        place(own, 20, u32::MAX - 1);
        place(own, 24, u32::MAX - 1);
    });
    assert!(
        said.contains("weight_0") && said.contains("past the file's end"),
        "{said}"
    );
    let said = with_record(|own| {
        place(own, 20, 4);
        place(own, 24, 4);
    });
    assert!(
        said.contains("`0.weight`") && said.contains("holds 1 elements"),
        "{said}"
    );
    let said = with_record(|own| place(own, 24, 1 << 30));
    assert!(
        said.contains("weight_0") && said.contains("compressed"),
        "{said}"
    );
    // Offsets: to another entry, into one, beyond the end.
    let said = with_record(|own| {
        let next = 46 + "mlp/data/weights/weight_0".len();
        own.copy_within(next + 42..next + 46, 42);
    });
    assert!(
        said.contains("weight_0") && said.contains("checksum"),
        "{said}"
    );
    for offset in [40, u32::MAX - 1] {
        let said = with_record(|own| place(own, 42, offset));
        assert!(said.contains("weight_0"), "{offset}: {said}");
    }
    // Paths: a duplicate entry.
    let mut zip = Zip::open("mlp");
    let first = zip.0[0].clone();
    zip.0.push(first.clone());
    assert_refused(&zip, &[&first.0, "twice"]);
}

#[test]
fn cycles_are_refused_by_the_node_that_closes_them() {
    // Cycles of one node, and of two.
    for taken in ["linear", "relu"] {
        let zip = node(0, |node| {
            node["inputs"][0]["arg"]["as_tensor"]["name"] = json!(taken)
        });
        let wanted = [taken, "nothing before it makes", "module `0`"];
        assert_refused(&zip, &wanted);
    }
}

#[test]
fn huge_tensors_of_few_bytes_are_refused_by_name() {
    // A single element repeated over a tebibyte.
    let mut zip = Zip::open("mlp");
    zip.json("_weights_config.json", |config| {
        let meta = &mut config["config"]["0.weight"]["tensor_meta"];
        meta["sizes"][0]["as_int"] = json!(1_i64 << 40);
        meta["strides"][0]["as_int"] = json!(0);
    });
    assert_refused(&zip, &["`0.weight`", "1099511627776", "holds 128 elements"]);
}

#[test]
fn a_file_that_changed_under_way_is_refused_when_its_weights_are_read() {
    let mut bytes = std::fs::read(path("mlp")).unwrap();
    // The first entry's data begins before this byte.
    bytes[300] ^= 1;
    let model = models::exported_bytes(bytes).unwrap();
    let error = Pipeline::new(model, &[Device::Cpu], 1).unwrap_err();
    let said = format!("{:#}", anyhow::Error::from(error));
    assert!(said.contains("checksum"), "{said}");
}

fn forward(zip: &Zip, x: &Tensor) -> String {
    let model = models::exported_bytes(zip.bytes()).unwrap();
    let mut pipe = Pipeline::new(model, &[Device::Cpu; 2], 2).unwrap();
    let error = pipe.forward(x).unwrap_err();
    format!("{:#}", anyhow::Error::from(error))
}

#[test]
fn inputs_of_another_shape_are_refused() {
    single_threaded();
    let input = |size: i64| Tensor::zeros([4, size], (Kind::Float, Device::Cpu));
    let said = forward(&Zip::open("mlp"), &input(9));
    assert!(
        said.contains("`input` has shape [2, 9]") && said.contains("8]"),
        "{said}"
    );
    let said = forward(&Zip::open("mlp"), &input(8).to_kind(Kind::Int64));
    assert!(
        said.contains("`input` has elements of kind Int64") && said.contains("exported for Float"),
        "{said}"
    );
    // Exported for batches of six.
    let fixed = Zip::open("mlp").program(|program| {
        let input = &mut program["graph_module"]["graph"]["tensor_values"]["input"];
        input["sizes"][0] = json!({"as_int": 6});
    });
    let said = forward(&fixed, &input(8));
    assert!(
        said.contains("[6, 8]") && said.contains("Dim(\"batch\")"),
        "{said}"
    );
    // Exported for at least three samples.
    let few = Zip::open("mlp").program(|program| {
        for range in program["range_constraints"]
            .as_object_mut()
            .unwrap()
            .values_mut()
        {
            range["min_val"] = json!(3);
        }
    });
    let said = forward(&few, &input(8));
    assert!(said.contains("of 3 to"), "{said}");
}

#[test]
fn a_file_of_an_evaluating_model_does_not_train() {
    single_threaded();
    let zip = Zip::open("dropout").program(|program| {
        let nodes = program["graph_module"]["graph"]["nodes"]
            .as_array_mut()
            .unwrap();
        for node in nodes {
            let inputs = node["inputs"].as_array_mut().unwrap();
            for input in inputs.iter_mut().filter(|input| input["name"] == "train") {
                input["arg"] = json!({"as_bool": false});
            }
        }
    });
    let model = models::exported_bytes(zip.bytes()).unwrap();
    let mut pipe = Pipeline::new(model, &[Device::Cpu], 1).unwrap();
    let x = Tensor::zeros([4, 8], (Kind::Float, Device::Cpu));
    let _ = pipe.forward(&x).unwrap();
    let loss = |out: &Tensor, _: &Tensor| out.sum(Kind::Float);
    let error = pipe.train_step(&x, &x, loss).unwrap_err();
    let said = format!("{:#}", anyhow::Error::from(error));
    assert!(said.contains("model.train()"), "{said}");
}
