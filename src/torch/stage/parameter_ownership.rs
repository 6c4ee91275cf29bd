//! Ownership of a stage's parameters: with [`Sums::AtOwners`] (ZeRO-1) each parameter is owned by
//! one of the stage's copies, which alone has the parameter's gradient and optimizer state and
//! updates it. The others receive the new weights ([`TorchStage::updated`]).

use tch::Tensor;

use super::exchange::Sums;
use super::torch_stage::TorchStage;
use crate::copies;
use crate::values::Values;

impl TorchStage {
    /// Returns, by parameter, then by tied copy, the replica that has its gradient between steps;
    /// this one if all have it.
    fn owners(&self) -> Vec<usize> {
        let (copies, accumulator) = (self.copies(), self.passes().accumulator());
        match copies.sums {
            Sums::InAll | Sums::Alone => vec![copies.replica; accumulator.sizes().count()],
            Sums::AtOwners => copies.owners(accumulator),
        }
    }

    /// Returns, by parameter, then by tied copy, whether this copy has its gradient between steps.
    pub(crate) fn owned(&self) -> Vec<bool> {
        let own = self.replica();
        self.owners()
            .into_iter()
            .map(|owner| owner == own)
            .collect()
    }

    /// The replica that has the gradient of a parameter or tied copy between steps.
    pub(crate) fn owner_of(&self, name: &str) -> Option<usize> {
        let place = self.passes().accumulator().place(name)?;
        self.owners().get(place).copied()
    }

    /// The weights that this copy owns, those alone present that the last update has changed.
    pub(crate) fn updated(&self) -> Values {
        let parameters = self.passes().accumulator().parameters();
        let all = parameters.iter().zip(self.owned()).enumerate();
        let own = all.filter(|(_, (_, owned))| *owned);
        own.map(|(place, ((_, parameter), _))| {
            let updated = self.updating().contains(&place);
            updated.then(|| parameter.detach())
        })
        .collect()
    }

    /// Sets the weights that another replica owns to what that has [updated](Self::updated).
    ///
    /// # Errors
    /// They are not as many; libtorch refuses.
    pub(crate) fn follow(&mut self, owner: usize, updated: &Values) -> anyhow::Result<()> {
        self.acts(c"the weights of another replica");
        let parameters = self.passes().accumulator().parameters();
        let all = parameters.iter().zip(self.owners());
        let own: Vec<&Tensor> = all
            .filter(|(_, of)| *of == owner)
            .map(|((_, parameter), _)| parameter)
            .collect();
        anyhow::ensure!(
            own.len() == updated.len(),
            "replica {owner} gave the weights of {} parameters, and owns {}",
            updated.len(),
            own.len()
        );
        for (parameter, updated) in own.into_iter().zip(updated.iter()) {
            let Some(updated) = updated else { continue };
            let _shared = self.streams().uses(updated)?;
            copies::fill(parameter, updated)?;
        }
        Ok(())
    }
}
