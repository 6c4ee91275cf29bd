//! Programs that contradict themselves, or give operators arguments that libtorch does not check, must be
//! refused before any access beyond a tensor.

use gpipe::tch::{Reduction, Tensor};
use gpipe::{Loss, Pipeline, Values, models, settings::on_values};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::forged::{Zip, refusal};
use crate::support::{cpus, single_threaded};

/// The error for a file in which only the archive's form of a tensor is changed.
fn with_other_form(name: &str, tensor: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut zip = Zip::open(name);
    let found = zip.0.iter().position(|(entry, bytes)| {
        let text = String::from_utf8_lossy(bytes);
        entry.ends_with("_config.json") && text.contains(&format!("\"{tensor}\""))
    });
    let bytes = &mut zip.0[found.unwrap()].1;
    let mut config: Value = serde_json::from_slice(bytes).unwrap();
    change(&mut config["config"][tensor]["tensor_meta"]);
    *bytes = serde_json::to_vec(&config).unwrap();
    refusal(zip.bytes()).unwrap_or_default()
}

/// Regression test: an LSTM weight with one row instead of 32 corrupted the heap or trained on foreign
/// memory; a GRU bias of one number trained by broadcasting.
#[test]
fn tensors_of_another_form_than_the_program_says_are_refused() {
    let lstm = "the tensor `lstm1.weight_ih_l0`: ";
    for rows in [1, 4, 12, 16, 31] {
        let said = with_other_form("lstm", "lstm1.weight_ih_l0", |meta| {
            meta["sizes"][0]["as_int"] = json!(rows);
        });
        let wanted = format!("{lstm}has sizes [{rows}, 8], the program says [32, 8]");
        assert_eq!(said, wanted);
    }
    let said = with_other_form("lstm", "lstm1.weight_ih_l0", |meta| {
        meta["dtype"] = json!(4)
    });
    assert_eq!(
        said,
        format!("{lstm}has elements of kind Int, the program says Float")
    );
    let said = with_other_form("lstm", "lstm1.weight_ih_l0", |meta| {
        meta["strides"] = json!([{"as_int": 1}, {"as_int": 32}]);
    });
    assert_eq!(
        said,
        format!("{lstm}has strides [1, 32], the program says [8, 1]")
    );
    // Other readers of tensors: a broadcast bias, a buffer, a constant.
    for (name, tensor, wanted) in [
        (
            "series",
            "gru.bias_ih_l0",
            "has sizes [1], the program says",
        ),
        (
            "resnet",
            "bn1.running_var",
            "has sizes [1], the program says",
        ),
    ] {
        let said = with_other_form(name, tensor, |meta| {
            meta["sizes"][0]["as_int"] = json!(1);
        });
        assert!(said.contains(tensor) && said.contains(wanted), "{said}");
    }
    let constant = Zip::open("decoder").0;
    let constant = constant
        .iter()
        .find(|(name, _)| name.ends_with("_constants_config.json"));
    let config: Value = serde_json::from_slice(&constant.unwrap().1).unwrap();
    let (tensor, _) = config["config"].as_object().unwrap().iter().next().unwrap();
    let said = with_other_form("decoder", tensor, |meta| meta["dtype"] = json!(3));
    assert!(said.contains("has elements of kind Int16"), "{said}");
}

/// Regression test: a batch norm's weight whose sixteen elements shared one in memory was read out of bounds;
/// the program declared the same strides.
#[test]
fn tensors_whose_elements_share_memory_are_refused() {
    for strides in [[0, 1], [1, 1], [8, 0], [4, 1]] {
        let strides = strides.map(|own| json!({"as_int": own}));
        let mut zip = Zip::open("lstm").program(|program| {
            let values = &mut program["graph_module"]["graph"]["tensor_values"];
            values["p_lstm1_weight_ih_l0"]["strides"] = json!(strides);
        });
        zip.json("_weights_config.json", |config| {
            config["config"]["lstm1.weight_ih_l0"]["tensor_meta"]["strides"] = json!(strides);
        });
        let said = refusal(zip.bytes()).unwrap_or_default();
        assert!(
            said.starts_with("the tensor `lstm1.weight_ih_l0`: "),
            "{said}"
        );
        assert!(said.ends_with("elements share memory"), "{said}");
    }
}

/// The graph does not give a weight's sizes.
#[test]
fn weights_without_sizes_in_the_program_are_refused() {
    let zip = Zip::open("lstm").program(|program| {
        let values = &mut program["graph_module"]["graph"]["tensor_values"];
        values
            .as_object_mut()
            .unwrap()
            .remove("p_lstm1_weight_ih_l0");
    });
    let said = refusal(zip.bytes()).unwrap();
    assert!(
        said.contains("`lstm1.weight_ih_l0`: has no sizes"),
        "{said}"
    );
}

/// The loss or the error of a file's first step.
fn step(name: &str, bytes: Vec<u8>) -> anyhow::Result<f64> {
    let fixture = Fixture::open(name);
    let model = models::exported_bytes(bytes)?;
    let mut pipe = Pipeline::builder(model)
        .devices(&cpus(1))
        .micro_batches(1)
        .threads_per_stage(1)
        .build()?;
    let loss = on_values(|out: &Values, y: &Values| -> anyhow::Result<Loss> {
        let (out, y) = (out.one()?, y.one()?);
        Ok(Loss::mean(out.f_mse_loss(y, Reduction::Mean)?))
    });
    let target: &Tensor = fixture.told("y");
    let report = pipe.train_step(fixture.inputs(), target, loss)?;
    Ok(report.read()?.loss)
}

#[track_caller]
fn assert_fails(name: &str, zip: &Zip, wanted: &str) {
    let said = step(name, zip.bytes()).map_err(|error| format!("{error:#}"));
    let said = said.expect_err("it should fail");
    assert!(said.contains(wanted), "`{wanted}` is not in: {said}");
}

/// The node that calls an operator.
fn node<'a>(program: &'a mut Value, operator: &str) -> &'a mut Value {
    let nodes = program["graph_module"]["graph"]["nodes"].as_array_mut();
    let mut nodes = nodes.unwrap().iter_mut();
    let is_own = |own: &&mut Value| own["target"].as_str().unwrap().contains(operator);
    nodes.find(is_own).unwrap()
}

fn argument<'a>(node: &'a mut Value, name: &str) -> &'a mut Value {
    let mut all = node["inputs"].as_array_mut().unwrap().iter_mut();
    &mut all.find(|own| own["name"] == name).unwrap()["arg"]
}

/// If program and archive agree, the sizes are checked against each other.
#[test]
fn recurrent_operators_check_what_they_are_given() {
    single_threaded();
    assert!(step("lstm", Zip::open("lstm").bytes()).is_ok());
    assert!(step("series", Zip::open("series").bytes()).is_ok());
    let mut zip = Zip::open("lstm").program(|program| {
        let values = &mut program["graph_module"]["graph"]["tensor_values"];
        values["p_lstm1_weight_ih_l0"]["sizes"][0]["as_int"] = json!(1);
    });
    zip.json("_weights_config.json", |config| {
        let meta = &mut config["config"]["lstm1.weight_ih_l0"]["tensor_meta"];
        meta["sizes"][0]["as_int"] = json!(1);
    });
    assert_fails(
        "lstm",
        &zip,
        "its parameter 0 has shape [1, 8], and its states and its input ask for [32, 8]",
    );
    for (name, operator, flag, value, wanted) in [
        (
            "lstm",
            ".lstm.",
            "num_layers",
            json!({"as_int": 7}),
            "a state has shape",
        ),
        (
            "lstm",
            ".lstm.",
            "num_layers",
            json!({"as_int": i64::MAX}),
            "a state has shape",
        ),
        (
            "lstm",
            ".lstm.",
            "num_layers",
            json!({"as_int": -1}),
            "only a fixed count",
        ),
        (
            "lstm",
            ".lstm.",
            "has_biases",
            json!({"as_bool": false}),
            "parameter",
        ),
        (
            "lstm",
            ".lstm.",
            "bidirectional",
            json!({"as_bool": true}),
            "a state has shape",
        ),
        (
            "series",
            ".gru.",
            "num_layers",
            json!({"as_int": 3}),
            "a state has shape",
        ),
        (
            "series",
            ".gru.",
            "has_biases",
            json!({"as_bool": false}),
            "parameter",
        ),
    ] {
        let zip = Zip::open(name).program(|program| {
            *argument(node(program, operator), flag) = value.clone();
        });
        assert_fails(name, &zip, wanted);
    }
}

/// The program `mlp` with these nodes first.
fn with_nodes(nodes: &[Value]) -> Zip {
    Zip::open("mlp").program(|program| {
        let all = &mut program["graph_module"]["graph"]["nodes"];
        let metadata = all[0]["metadata"].clone();
        for own in nodes.iter().rev() {
            let mut own = own.clone();
            own["metadata"] = metadata.clone();
            all.as_array_mut().unwrap().insert(0, own);
        }
    })
}

/// A node in Python's format.
fn call(target: &str, inputs: &[(&str, Value)], outputs: &[&str]) -> Value {
    let inputs = inputs
        .iter()
        .map(|(name, arg)| json!({"name": name, "arg": arg, "kind": 1}));
    let outputs = outputs
        .iter()
        .map(|name| json!({"as_tensor": {"name": name}}));
    json!({
        "target": format!("torch.ops.aten.{target}"),
        "name": outputs.clone().next().unwrap()["as_tensor"]["name"],
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })
}

/// A tensor of equal integers.
fn whole(name: &str, sizes: &[i64], value: i64) -> Value {
    let inputs = [
        ("size", json!({"as_ints": sizes})),
        ("fill_value", json!({"as_int": value})),
        ("dtype", json!({"as_scalar_type": 5})),
    ];
    call("full.default", &inputs, &[name])
}

fn tensor(name: &str) -> Value {
    json!({"as_tensor": {"name": name}})
}

/// The bag kernel reads as many weights as the last offset leaves out.
#[test]
fn offsets_of_bags_end_where_their_indices_do() {
    single_threaded();
    let bags = |last: i64| {
        let inputs = [
            ("weight", tensor("p_0_weight")),
            ("indices", tensor("own_indices")),
            ("offsets", tensor("own_offsets")),
            ("include_last_offset", json!({"as_bool": true})),
        ];
        let outputs = ["own_bags", "own_sizes", "own_order", "own_most"];
        with_nodes(&[
            whole("own_indices", &[5], 1),
            whole("own_first", &[1], 0),
            whole("own_last", &[1], last),
            call(
                "cat.default",
                &[(
                    "tensors",
                    json!({"as_tensors": [
                    {"name": "own_first"}, {"name": "own_last"}]}),
                )],
                &["own_offsets"],
            ),
            call("embedding_bag.default", &inputs, &outputs),
        ])
    };
    assert!(step("mlp", bags(5).bytes()).is_ok());
    assert_fails(
        "mlp",
        &bags(3),
        "its last offset is 3, and it is given 5 indices",
    );
    assert_fails("mlp", &bags(9), "an offset is 9, not within 0 to 5");
    assert_fails("mlp", &bags(-1), "an offset is -1, not within 0 to 5");
}

/// The kernel divides by the size of a weight, and reads as many norms as the weight has rows.
#[test]
fn a_weight_norm_has_a_norm_for_each_row() {
    single_threaded();
    let norm = |rows: &[i64], norms: &[i64]| {
        let zeros = |name: &str, sizes: &[i64]| {
            let sizes = [("size", json!({"as_ints": sizes}))];
            call("zeros.default", &sizes, &[name])
        };
        let inputs = [("v", tensor("own_v")), ("g", tensor("own_g"))];
        with_nodes(&[
            zeros("own_v", rows),
            zeros("own_g", norms),
            call("_weight_norm.default", &inputs, &["own_w"]),
        ])
    };
    assert!(step("mlp", norm(&[4, 3], &[4, 1]).bytes()).is_ok());
    assert_fails("mlp", &norm(&[4, 0], &[4, 1]), "its v has shape [4, 0]");
    assert_fails(
        "mlp",
        &norm(&[4000, 3], &[1, 1]),
        "its v has shape [4000, 3]",
    );
}

/// The backward kernel of batch norm reads one element per channel, whatever the strides.
#[test]
fn weights_of_batch_norm_lie_one_behind_the_other() {
    single_threaded();
    let inputs = [
        ("self", tensor("own_one")),
        ("size", json!({"as_ints": [16]})),
    ];
    let ones = [("size", json!({"as_ints": [1]}))];
    let norm = [
        ("input", tensor("linear")),
        ("weight", tensor("own_weight")),
        ("bias", json!({"as_none": true})),
        ("running_mean", json!({"as_none": true})),
        ("running_var", json!({"as_none": true})),
        ("training", json!({"as_bool": true})),
        ("momentum", json!({"as_float": 0.1})),
        ("eps", json!({"as_float": 1e-5})),
        ("cudnn_enabled", json!({"as_bool": false})),
    ];
    let zip = Zip::open("mlp").program(|program| {
        let nodes = program["graph_module"]["graph"]["nodes"]
            .as_array_mut()
            .unwrap();
        let metadata = nodes[0]["metadata"].clone();
        for mut own in [
            call("batch_norm.default", &norm, &["own_norm"]),
            call("expand.default", &inputs, &["own_weight"]),
            call("ones.default", &ones, &["own_one"]),
        ] {
            own["metadata"] = metadata.clone();
            nodes.insert(1, own);
        }
    });
    assert_fails("mlp", &zip, "a weight of shape [16] has strides [0]");
}

/// Internal operators that libtorch calls after checks in others trust their arguments.
#[test]
fn operators_that_trust_their_arguments_are_refused() {
    for target in [
        "_reshape_alias.default",
        "_native_batch_norm_legit.default",
        "native_batch_norm.default",
        "_batch_norm_with_update.default",
        "_ctc_loss.default",
        "ctc_loss.IntList",
        "_fft_r2c.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_upsample_bilinear2d_aa.default",
        "avg_pool2d_backward.default",
        "_log_softmax_backward_data.default",
        "mkldnn_rnn_layer.default",
        "lu_unpack.default",
        "pdist.default",
        "add.out",
    ] {
        let zip = Zip::open("mlp").program(|program| {
            node(program, ".linear.")["target"] = json!(format!("torch.ops.aten.{target}"));
        });
        let said = refusal(zip.bytes()).unwrap_or_default();
        assert!(
            said.contains("is not allowed in a program"),
            "{target}: {said}"
        );
    }
}

/// Regression test: 100,000 letters of a file were printed.
#[test]
fn long_names_in_a_file_are_told_without_their_middle() {
    let mut zip = Zip::open("mlp");
    zip.json("_weights_config.json", |config| {
        config["config"]["0.weight"]["path_name"] = json!("p".repeat(100_000));
    });
    let said = refusal(zip.bytes()).unwrap();
    assert!(
        said.contains("pp… (") && said.ends_with("does not have it"),
        "{said}"
    );
    assert!(said.len() < 500, "{}", said.len());
}
