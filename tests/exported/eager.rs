//! Evaluation and batch norm are those of eager PyTorch.

use gpipe::tch::Kind;
use gpipe::{Pipeline, models};
use serde_json::{Value, json};

use crate::fixture::{Fixture, MICRO_BATCHES, assert_as_told, assert_near, every};
use crate::forged::Zip;
use crate::support::{assert_same_bits, cpus, gradients, single_threaded};

#[test]
fn one_file_is_evaluated_too() {
    single_threaded();
    for name in every() {
        let fixture = Fixture::open(name);
        // One takes only micro-batches of two samples.
        let micro = if name == "fixed" { MICRO_BATCHES } else { 1 };
        for stages in 1..=4 {
            let mut pipe = fixture
                .builder(stages)
                .micro_batches(micro)
                .build()
                .unwrap();
            let out = pipe.forward_values(fixture.inputs()).unwrap();
            let what = format!("{name}, {stages} stages: the output in evaluation");
            let out = out.present().last().unwrap();
            assert_as_told(out, fixture.told("eval"), &what);
        }
    }
}

#[test]
fn batch_norm_counts_a_mini_batch_once() {
    single_threaded();
    for name in ["resnet", "convnext", "unet"] {
        let fixture = Fixture::open(name);
        // With one micro-batch its statistics are those of the mini-batch.
        let mut pipe = fixture.builder(2).micro_batches(1).build().unwrap();
        fixture.step(&mut pipe);
        let mut counters = 0;
        for (buffer, own) in pipe.buffers().unwrap() {
            if own.kind() == Kind::Int64 {
                counters += 1;
                assert_eq!(own.int64_value(&[]), 1, "{name}: {buffer}");
                continue;
            }
            let told = fixture.told(&format!("buffer.{buffer}"));
            assert_near(&own, told, &format!("{name}: {buffer}"));
        }
        assert!(counters > 0, "{name}");
        // Several micro-batches count as one step, and so does a repetition.
        let mut pipe = fixture.builder(2).build().unwrap();
        fixture.step(&mut pipe);
        fixture.step(&mut pipe);
        let buffers = pipe.buffers().unwrap();
        let counter = buffers.iter().find(|(_, own)| own.kind() == Kind::Int64);
        assert_eq!(counter.unwrap().1.int64_value(&[]), 2, "{name}");
    }
}

/// Replaces the operator of nodes; *returns* how many there were.
fn renamed(program: &mut Value, from: &str, to: &str, argument: (&str, &str)) -> usize {
    let nodes = program["graph_module"]["graph"]["nodes"].as_array_mut();
    let nodes = nodes
        .unwrap()
        .iter_mut()
        .filter(|own| own["target"] == from);
    let mut count = 0;
    for node in nodes {
        node["target"] = json!(to);
        for own in node["inputs"].as_array_mut().unwrap() {
            if own["name"] == argument.0 {
                own["name"] = json!(argument.1);
            }
        }
        count += 1;
    }
    count
}

/// On a GPU attention's outputs have another memory layout than on the exporting CPU, so `view` failed there.
/// Here attention's transposed output is viewed.
#[test]
fn a_view_that_this_device_cannot_make_is_a_copy() {
    single_threaded();
    let folder = tempfile::tempdir().unwrap();
    for name in ["decoder", "encoder"] {
        let fixture = Fixture::open(name);
        let path = folder.path().join(format!("{name}.pt2"));
        let (reshape, view) = (
            "torch.ops.aten.reshape.default",
            "torch.ops.aten.view.default",
        );
        let mut views = 0;
        let zip = Zip::open(name).program(|program| {
            views = renamed(program, reshape, view, ("shape", "size"));
        });
        assert!(views >= 3, "{name}");
        std::fs::write(&path, zip.bytes()).unwrap();
        let forged = || {
            let model = Pipeline::builder(models::exported(&path).unwrap());
            let model = model.devices(&cpus(2)).micro_batches(MICRO_BATCHES);
            model.threads_per_stage(1).seed(5).build().unwrap()
        };
        let (mut own, mut plain) = (forged(), fixture.builder(2).build().unwrap());
        assert_eq!(fixture.step(&mut own), fixture.step(&mut plain), "{name}");
        assert_same_bits(&gradients(&mut own), &gradients(&mut plain), name);

        // If a value is changed in place, a copy would hide the change from its base.
        let zip = zip.program(|program| {
            let (add, there) = ("torch.ops.aten.add.Tensor", "torch.ops.aten.add_.Tensor");
            assert!(renamed(program, add, there, ("", "")) > 0);
        });
        std::fs::write(&path, zip.bytes()).unwrap();
        let error = forged().forward_values(fixture.inputs()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("view size is not compatible"), "{error}");
    }
}
