//! Whether the step that just ended counts, and what its gradients are then.

use super::Pipeline;
use super::loss_scale::Scaler;
use super::losses::Losses;
use super::verdict::{There, Verdict};
use crate::error::Error;
use crate::torch::{NonFinite, Values};

/// What is known of a step when the host is done with it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) non_finite: Option<String>,
    /// Of the step; some number where only devices know it.
    pub(super) loss_scale: Option<f64>,
    /// Where only devices know.
    pub(super) verdict: Option<Verdict>,
    pub(super) input_gradient: Option<Values>,
}

impl Pipeline {
    /// What the engine multiplies losses with; another factor may be on a device.
    pub(super) fn loss_scale_of_step(&self) -> Option<f64> {
        let scaler = self.scaler.as_ref()?;
        Some(match scaler.there() {
            Some(_) => 1.0,
            None => scaler.scale(),
        })
    }

    /// Leaves the gradients of a step that counts, of this loss and with the gradient of
    /// the input, as the mini-batch has them; else undoes the step.
    pub(super) fn judged(
        &mut self,
        losses: &Losses,
        input_gradient: Option<Values>,
    ) -> Result<Judged, Error> {
        let losses_count = self.non_finite == NonFinite::Skip;
        let looks = losses_count || self.scaler.is_some();
        if looks && self.engine.run_by_themselves() {
            let watch = self.engine.watch()?;
            let scale = self.scaler.as_ref().and_then(Scaler::there);
            let judged = Verdict::of_step(&mut self.engine, losses, losses_count, scale)?;
            if let Some((verdict, there)) = judged {
                return self.judged_there(verdict, there, input_gradient);
            }
            drop(watch);
        }
        self.judged_here(losses, losses_count, looks, input_gradient)
    }

    /// The host looks.
    fn judged_here(
        &mut self,
        losses: &Losses,
        losses_count: bool,
        looks: bool,
        input_gradient: Option<Values>,
    ) -> Result<Judged, Error> {
        self.scaler.as_mut().map_or(Ok(()), |own| own.hear(true))?;
        let loss_scale = self.scaler.as_ref().map(Scaler::scale);
        let factor = losses.factor(loss_scale);
        let input_gradient = match (input_gradient, factor) {
            (Some(gradient), Some(factor)) => {
                Some(gradient.try_map(|grad| grad.f_mul_scalar(factor))?)
            }
            (gradient, _) => gradient,
        };
        let non_finite = if looks {
            self.not_finite(losses, losses_count)?
        } else {
            None
        };
        if let Some(what) = &non_finite {
            self.undo()?;
            if let Some(scaler) = &mut self.scaler {
                scaler.tell(true)?;
                scaler.overflowed(what)?;
            }
        } else {
            self.ties.sum(&mut self.engine)?;
            if let Some(factor) = factor {
                self.engine
                    .on_each(move |_, stage| Ok(stage.accumulator().scale(factor)?))?;
            }
            if let Some(scaler) = &mut self.scaler {
                scaler.tell(false)?;
                scaler.succeeded();
            }
        }
        Ok(Judged {
            non_finite,
            loss_scale,
            verdict: None,
            input_gradient,
        })
    }

    /// The devices know, and do what follows from it.
    fn judged_there(
        &mut self,
        verdict: Verdict,
        there: There,
        input_gradient: Option<Values>,
    ) -> Result<Judged, Error> {
        let input_gradient = match (input_gradient, &there.factor) {
            (Some(gradient), Some(factor)) => Some(gradient.try_map(|grad| {
                let factor = factor.f_to_device(grad.device())?.f_to_kind(grad.kind())?;
                grad.f_mul(&factor)
            })?),
            (gradient, _) => gradient,
        };
        self.ties.sum(&mut self.engine)?;
        let found = there.found.shallow_clone();
        there.tell(&mut self.engine)?;
        if let Some(scaler) = &mut self.scaler {
            scaler.judged(&found, verdict.share())?;
        }
        Ok(Judged {
            non_finite: None,
            loss_scale: self.scaler.as_ref().map(|_| f64::NAN),
            verdict: Some(verdict),
            input_gradient,
        })
    }

    /// What is not finite in the step that just ended.
    fn not_finite(&mut self, losses: &Losses, losses_count: bool) -> Result<Option<String>, Error> {
        if losses_count {
            let loss = losses.total()?;
            if !loss.is_finite() {
                return Ok(Some(format!("the loss ({loss})")));
            }
        }
        let found = self
            .engine
            .on_each(|_, stage| Ok(stage.accumulator().first_non_finite()?))?;
        let first = found.into_iter().flatten().next();
        Ok(first.map(|name| format!("the gradient of `{name}`")))
    }
}
