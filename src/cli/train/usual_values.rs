//! Defaults that depend on the case: learning rate and number of micro-batches.

use super::few_samples::fewest_samples;
use super::recipe::Recipe;
use crate::config::Origins;
use crate::model::Chosen;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::OptimizerKind;

/// The initial weights of a run, which decide its default learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Trained weights from `--weights`.
    Weights,
    /// The weights in a .pt2, possibly trained.
    Program,
    /// Untrained weights of a large model.
    Large,
    /// Untrained weights of a model with convolutions.
    Images,
    /// Untrained weights.
    Random,
}

/// Number of parameters from which a model is large.
const LARGE: u64 = 50_000_000;

impl Beginning {
    /// Returns the initial weights of this model's run.
    ///
    /// # Errors
    /// The layers of the model cannot be made.
    pub(super) fn of(spec: &ModelSpec, has_weights: bool) -> anyhow::Result<Self> {
        Ok(if has_weights {
            Self::Weights
        } else if spec.exported().is_some() {
            Self::Program
        } else if spec.parameters()? >= LARGE {
            Self::Large
        } else if has_convolutions(spec)? {
            Self::Images
        } else {
            Self::Random
        })
    }

    /// Returns the default learning rates of `adamw` and `adam`, and of `sgd`, and a description of the
    /// case.
    ///
    /// # Source
    /// The rates of `adamw` are those of transformers' `TrainingArguments` for trained weights, of
    /// PyTorch's `AdamW` for programs and images, and that of GPT-3 with 350 million parameters
    /// (Brown et al. 2020, table 2.1) for large models.
    fn rates(self) -> (f64, f64, &'static str) {
        match self {
            Self::Weights => (5e-5, 0.01, "trained weights (--weights)"),
            Self::Program => (
                1e-3,
                0.01,
                "a .pt2; weights that are trained already need less: --lr 5e-5",
            ),
            Self::Large => (
                3e-4,
                0.1,
                "untrained weights of 50 million parameters and more",
            ),
            Self::Images => (1e-3, 0.1, "untrained weights of a model with convolutions"),
            Self::Random => (3e-3, 0.1, "untrained weights"),
        }
    }
}

/// Whether a layer has a parameter of more than two dimensions, such as a convolution kernel: its cost
/// does not follow from its number of parameters.
pub(super) fn has_convolutions(spec: &ModelSpec) -> anyhow::Result<bool> {
    let variables = spec.build().distinct_variables()?;
    Ok(variables.iter().any(|own| own.shape().len() > 2))
}

/// Fills in defaults of a recipe; returns messages about them.
///
/// # Errors
/// The layers of the model cannot be made.
pub(super) fn filled(
    mut recipe: Recipe,
    origins: &Origins,
    chosen: &Chosen,
    has_weights: bool,
) -> anyhow::Result<(Recipe, Vec<String>)> {
    let mut said = Vec::new();
    if origins.of("optimizer.lr").is_none() {
        let (adam, sgd, case) = Beginning::of(&chosen.spec, has_weights)?.rates();
        recipe.lr = match recipe.optimizer {
            OptimizerKind::Sgd(_) => sgd,
            _ => adam,
        };
        said.push(format!(
            "lr {}: the default of {} for {case}; --lr changes it",
            shown(recipe.lr),
            recipe.optimizer.name()
        ));
    }
    if origins.of("pipeline.micro").is_none() {
        let (micro, note) = micro(&recipe, chosen)?;
        recipe.micro = micro;
        said.extend(note);
    }
    Ok((recipe, said))
}

/// Formats a rate.
fn shown(rate: f64) -> String {
    if rate < 1e-3 {
        format!("{rate:e}")
    } else {
        rate.to_string()
    }
}

/// Micro-batches per device: four or more make GPipe's bubble negligible (Huang et al. 2019, 2.3). With
/// 1F1B, devices are then idle for a ninth to a fifth of the time.
const FOR_EACH: usize = 4;
/// Fewer devices get as many micro-batches as this many, so that one device gives the results of two.
const FEWEST_DEVICES: usize = 2;

/// Returns the default number of micro-batches, and the reason if it is reduced.
fn micro(recipe: &Recipe, chosen: &Chosen) -> anyhow::Result<(usize, Option<String>)> {
    let (batch, devices) = (recipe.batch, recipe.all_devices());
    let usual = FOR_EACH * devices.max(FEWEST_DEVICES);
    // A leaf of the tree is at least one micro-batch.
    let usual = usual.max(recipe.tree).min(batch);
    // A batch norm's statistics are those of a micro-batch.
    let most = match fewest_samples(&chosen.spec)? {
        Some(samples) => (batch / samples).max(devices).min(usual),
        None => usual,
    };
    // Prefer equal micro-batches, unless that halves their number. Programs may take few sizes.
    let even = (most.div_ceil(2)..=most).rev();
    let even = even.filter(|micro| batch.is_multiple_of(*micro));
    let mut tried = even.chain((1..=most).rev()).chain(most + 1..=batch);
    let takes = |micro: &usize| chosen.check_micro(batch, *micro).is_ok();
    // If no number fits, the later check reports it.
    let micro = tried.find(takes).unwrap_or(most);
    let note = (most < usual && micro < usual).then(|| {
        format!(
            "{micro} micro-batches, not {usual}: batch norm takes its statistics of each, and of few values \
             they are noise; --micro takes another number"
        )
    });
    Ok((micro, note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::exported::AskedLoss;
    use gpipe_models::zoo::Zoo;
    use tch::Device;

    fn chosen(model: &str, sizes: &[(&str, &str)]) -> Chosen {
        let sizes = sizes
            .iter()
            .map(|&(size, value)| (size.into(), value.into()));
        Chosen::new(
            &Zoo::builtin(),
            model,
            &sizes.collect(),
            AskedLoss::default(),
        )
        .unwrap()
    }

    fn begins(model: &str, has_weights: bool) -> Beginning {
        Beginning::of(&chosen(model, &[]).spec, has_weights).unwrap()
    }

    #[test]
    fn the_learning_rate_is_that_of_the_case() {
        assert_eq!(begins("gpt", false), Beginning::Random);
        assert_eq!(begins("mlp", false), Beginning::Random);
        assert_eq!(begins("resnet50", false), Beginning::Images);
        assert_eq!(begins("gpt2-xl", false), Beginning::Large);
        for model in ["gpt", "resnet50", "gpt2-xl"] {
            assert_eq!(begins(model, true), Beginning::Weights);
        }
        assert_eq!([5e-5, 0.003, 0.1].map(shown), ["5e-5", "0.003", "0.1"]);
    }

    fn usual(model: &Chosen, devices: usize, batch: usize) -> usize {
        let recipe = Recipe {
            devices: vec![Device::Cpu; devices],
            batch,
            processes: 1,
            ..Recipe::defaults()
        };
        micro(&recipe, model).unwrap().0
    }

    #[test]
    fn micro_batches_are_four_for_each_device_and_equal_where_that_can_be() {
        let gpt = chosen("gpt", &[]);
        for (devices, batch, micro) in [
            (1, 32, 8),
            (2, 32, 8),
            (4, 32, 16),
            (8, 32, 32),
            // 12 do not divide the batch, 8 do.
            (3, 32, 8),
            (2, 12, 6),
            (2, 4, 4),
            (2, 1, 1),
            // A prime batch is divided only by itself.
            (2, 31, 8),
        ] {
            assert_eq!(usual(&gpt, devices, batch), micro, "{devices}, {batch}");
        }
    }

    #[test]
    fn micro_batches_of_a_batch_norm_keep_samples() {
        // One value per channel and sample, and four.
        for (image, cases) in [
            (
                "32",
                [(2, 32, 2), (2, 128, 8), (2, 12, 2), (4, 12, 4), (2, 1, 1)],
            ),
            (
                "64",
                [(2, 32, 8), (2, 16, 4), (2, 12, 4), (4, 64, 16), (2, 1, 1)],
            ),
        ] {
            let resnet = chosen("resnet50", &[("image", image)]);
            for (devices, batch, micro) in cases {
                let own = usual(&resnet, devices, batch);
                assert_eq!(own, micro, "{image}, {devices}, {batch}");
            }
        }
    }
}
