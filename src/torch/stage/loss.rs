//! The loss, added by the last stage to its forward.

use tch::Tensor;

use super::compute::Compute;
use super::layers::pass_seed;
use super::live::Live;
use super::pass::Pass;
use super::writes::Watched;
use crate::error::TorchError;
use crate::ffi::{self, RandomScope};
use crate::gradients::finite;
use crate::rng;
use crate::step::Mode;
use crate::values::Values;

/// Runs the loss function.
#[derive(Debug)]
pub(super) struct StageLoss {
    /// Seed of its own random source, as each layer has one.
    seed: u64,
    /// Whether the function writes to its inputs; unknown before its first run, which is on copies.
    writes: Option<bool>,
    /// Scale of the loss, if it is on the stage's device.
    scale: Option<Tensor>,
}

impl StageLoss {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed: rng::named_seed(seed, "loss"),
            writes: None,
            scale: None,
        }
    }

    /// Draws random numbers as a model does that was built with this seed.
    pub(super) fn reseed(&mut self, seed: u64) {
        self.seed = rng::named_seed(seed, "loss");
    }

    /// Sets the scale of later losses.
    #[doc(alias = "GradScaler")]
    pub(super) fn set_scale(&mut self, scale: &Tensor) {
        self.scale = Some(scale.shallow_clone());
    }

    /// Makes the loss of a micro-batch the root of a graph: that of the last layers, or a
    /// `separate` one. Returns its value, and the tensor that encodes its reduction.
    pub(super) fn run(
        &mut self,
        compute: &mut Compute,
        (outputs, targets): (Values, &Values),
        (live, separate): (&mut Live, bool),
        pass: Pass<'_>,
    ) -> anyhow::Result<Values> {
        let mode = &pass.settings().mode;
        let Mode::Train { loss, shares, .. } = mode else {
            anyhow::bail!("a loss in inference");
        };
        let layers = compute.layers();
        layers.progress().loss();
        let _random = RandomScope::open(pass_seed(self.seed, pass))?;
        let outputs = if separate {
            live.enter(outputs)?
        } else {
            outputs
        };
        let autocast = layers.precision().scope(layers.device())?;
        // Whether it writes to its inputs is found out in its first run, on copies.
        let copies = self.writes != Some(false);
        // Without skips, only outputs that are parameters or buffers are used elsewhere.
        let shared = if copies && layers.skips().is_empty() {
            layers.own().among(&outputs)?
        } else {
            vec![copies; outputs.len()]
        };
        let outputs = given(outputs, &shared)?;
        let targets = given(targets.shallow_clone(), &vec![copies; targets.len()])?;
        let watched = (
            Watched::new(outputs.present())?,
            Watched::new(targets.present())?,
        );
        let saving = live.saving_loss(&targets)?;
        let loss = loss.loss(&outputs, &targets)?.checked()?;
        drop((saving, autocast));
        let wrote = (watched.0.changed()?, watched.1.changed()?);
        if let Some(audit) = layers.audit() {
            audit.loss(wrote.0, separate)?;
        }
        self.writes = Some(self.writes == Some(true) || wrote.0 || wrote.1);
        let own = !copies && wrote.0 && layers.own().among(&outputs)?.contains(&true);
        if wrote.0 {
            // The outputs may be what arrived, and that may be another stage's parameter.
            compute.segments_mut().copy_inputs();
        }
        anyhow::ensure!(
            copies || !wrote.1,
            "the loss function changed a target in place, which it had not done before; targets \
             will be copied from now on"
        );
        anyhow::ensure!(
            !own,
            "the loss function changed a parameter or buffer in place, which it had not done \
             before; it will be copied from now on"
        );
        live.saved_some()?;
        let value = if loss.counts() {
            let share = shares.get(pass.micro().index()).copied();
            let seed = loss.reduction.seed(share.unwrap_or_default()) * mode.loss_scale();
            let layers = compute.layers();
            live.loss_root(&loss.value, (seed, self.scale.as_ref()), layers.len())?;
            if mode.fails_on_non_finite() {
                anyhow::ensure!(finite(&loss.value)?, "the loss is not finite");
            }
            // The caller keeps it to the end of the step. A copy: libtorch's own mean of
            // squares, say, is one number at the beginning of a whole batch's memory.
            ffi::copy(&loss.value.f_detach()?)?
        } else {
            // A root without a gradient: 0 times NaN would be NaN, in the loss and on the
            // way back.
            live.root_without_gradient(&loss.value)?;
            let options = (loss.value.kind(), loss.value.device());
            Tensor::f_zeros([], options)?
        };
        compute.layers().progress().outside();
        let reduction = loss.reduction.to_tensor();
        Ok([Some(value), reduction].into_iter().collect())
    }
}

/// Returns the loss function's inputs: these, with the shared ones copied.
fn given(values: Values, shared: &[bool]) -> Result<Values, TorchError> {
    if !shared.contains(&true) {
        return Ok(values);
    }
    let copied = ffi::copies(values.iter(), shared)?;
    Ok(copied.into_iter().collect())
}
