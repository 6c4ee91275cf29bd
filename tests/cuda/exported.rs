//! Programs exported on a CPU.

use gpipe::tch::{Device, Reduction, Tensor};
use gpipe::{Loss, Optimizer, Pipeline, Values, models, optim::AdamW, settings::on_values};

use crate::harness::{Test, note};
use crate::support::{assert_same_bits, snapshot};

const GPU: Device = Device::Cuda(0);

/// A program, and its training data.
struct Program {
    name: &'static str,
    bytes: &'static [u8],
    told: &'static [u8],
}

macro_rules! program {
    ($name:literal) => {
        Program {
            name: $name,
            bytes: include_bytes!(concat!("../fixtures/exported/", $name, ".pt2")),
            told: include_bytes!(concat!("../fixtures/exported/", $name, ".safetensors")),
        }
    };
}

const PROGRAMS: [Program; 6] = [
    program!("conformer"),
    program!("decoder"),
    program!("encoder"),
    program!("resnet"),
    program!("unet"),
    program!("vit"),
];

pub(crate) fn tests() -> Vec<Test> {
    vec![("exported::programs_train_as_on_the_cpu", programs)]
}

impl Program {
    fn pipeline(&self, devices: &[Device]) -> Pipeline {
        Pipeline::builder(models::exported_bytes(self.bytes).unwrap())
            .devices(devices)
            .micro_batches(3)
            .deterministic(true)
            .threads_per_stage(1)
            .build()
            .unwrap()
    }

    /// The losses of three steps, and the final weights.
    fn trained(&self, devices: &[Device]) -> (Vec<f64>, Vec<(String, Tensor)>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told.safetensors");
        std::fs::write(&path, self.told).unwrap();
        let told = Tensor::read_safetensors(&path).unwrap();
        let all = |prefix: &str| -> Values {
            let mut own: Vec<_> = told
                .iter()
                .filter(|own| own.0.starts_with(prefix))
                .collect();
            own.sort_by(|one, other| one.0.cmp(&other.0));
            own.into_iter().map(|own| own.1.shallow_clone()).collect()
        };
        let loss = |out: &Values, y: &Values| -> anyhow::Result<Loss> {
            Ok(Loss::mean(
                out.one()?.f_mse_loss(y.one()?, Reduction::Mean)?,
            ))
        };
        let (mut pipe, mut optimizer) = (self.pipeline(devices), Optimizer::new(AdamW::default()));
        let losses = (0..3).map(|_| {
            let report = pipe
                .train_step(all("x"), all("y"), on_values(loss))
                .unwrap();
            optimizer.step(&mut pipe).unwrap();
            report.read().unwrap().loss
        });
        let losses = losses.collect();
        (losses, snapshot(&mut pipe))
    }
}

/// Regression test: the first program with attention failed on a GPU, where its outputs have another memory
/// layout than on the exporting device.
fn programs() {
    for program in PROGRAMS {
        let name = program.name;
        let (losses, weights) = program.trained(&[GPU]);
        let (same, there) = program.trained(&[GPU; 3]);
        assert_eq!(losses, same, "{name}");
        assert_same_bits(&weights, &there, name);
        let (near, _) = program.trained(&[Device::Cpu; 2]);
        for (own, other) in losses.iter().zip(&near) {
            assert!(
                (own - other).abs() <= 2e-3 * other.abs(),
                "{name}: {losses:?}, {near:?}"
            );
        }
        note(name, losses);
    }
}
