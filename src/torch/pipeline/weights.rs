//! Parameters and buffers by name, on any stage.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpipe_partitioner::StageId;
use tch::Tensor;

use super::Pipeline;
use super::local_steps::LocalSteps;
use super::stages::{Phase, Update};
use crate::error::{Error, Setting, SettingsError};
use crate::optim::Optimizer;

impl Pipeline {
    /// Returns every parameter of the local stages by name, in model order: handles to the stages'
    /// own tensors, on their devices; `grad()` is the accumulated gradient. With
    /// [replicas](crate::PipelineBuilder::replicas), which hold the same values, those of the first
    /// local one: [`Pipeline::load`] changes all. With a
    /// [sharded](crate::PipelineBuilder::shard_optimizer) optimizer only one replica has a
    /// parameter's gradient: the handle is that replica's, if it is local.
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn parameters(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        let any_copy = self.engine.all_have_gradients() || self.engine.train_alone();
        if any_copy {
            let handles = self
                .engine
                .on_one_of_each(|_, stage| Ok(cloned(stage.committed()?.parameters())))?;
            return Ok(handles.into_iter().flatten().collect());
        }
        let handles = self.engine.on_each(|id, stage| {
            let owned = stage.owned();
            let all = cloned(stage.committed()?.parameters());
            Ok((id, all.into_iter().zip(owned).collect::<Vec<_>>()))
        })?;
        Ok(owned_first(handles))
    }

    /// Returns every buffer (batch-norm statistics, for example) of the local stages by name, in
    /// model order.
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn buffers(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        let handles = self
            .engine
            .on_one_of_each(|_, stage| Ok(cloned(stage.buffers()?)))?;
        Ok(handles.into_iter().flatten().collect())
    }

    /// Sets parameters and buffers by name, on any stage.
    ///
    /// # Errors
    /// A name that the model does not have, a different shape, or a device that does not finish its
    /// work within the [patience](crate::PipelineBuilder::patience); then nothing changes.
    pub fn load(&mut self, values: &[(String, Tensor)]) -> Result<(), Error> {
        let call = format!("load of {} values", values.len());
        let own = self.check_between_rounds("load");
        let own = own.and_then(|()| self.named_tensors());
        let own = self.engine.agree_on_call(&call, own)?;
        let loaded = self.load_into(own, values);
        self.engine.conclude(loaded)
    }

    /// Returns the local parameters and buffers, those of every replica.
    fn named_tensors(&mut self) -> Result<HashMap<String, Vec<Tensor>>, Error> {
        let handles = self.engine.on_each(|_, stage| {
            let mut all = cloned(stage.committed()?.parameters());
            all.extend(cloned(stage.buffers()?));
            Ok(all)
        })?;
        let mut own: HashMap<String, Vec<Tensor>> = HashMap::new();
        for (name, tensor) in handles.into_iter().flatten() {
            own.entry(name).or_default().push(tensor);
        }
        Ok(own)
    }

    fn load_into(
        &mut self,
        mut own: HashMap<String, Vec<Tensor>>,
        values: &[(String, Tensor)],
    ) -> Result<(), Error> {
        self.check_names(&own, values)?;
        let mut pairs = Vec::new();
        let mut seen = HashSet::new();
        for (name, value) in values {
            if !seen.insert(name) {
                return Err(wrong(format!("`{name}` is given twice")));
            }
            for tensor in own.remove(name).unwrap_or_default() {
                if tensor.size() != value.size() {
                    let (own, given) = (tensor.size(), value.size());
                    return Err(wrong(format!("`{name}` has shape {own:?}, not {given:?}")));
                }
                pairs.push((tensor, value));
            }
        }
        // No process changes anything before all have checked the values.
        self.engine.share(())?;
        self.engine.in_time()?;
        tch::no_grad(|| {
            pairs
                .into_iter()
                .try_for_each(|(mut to, from)| to.f_copy_(from).map(drop))
        })?;
        self.ties.refresh(&mut self.engine)
    }

    /// Checks that the model has the names that each process loads, and that every process with a
    /// name is given its value.
    fn check_names(
        &self,
        own: &HashMap<String, Vec<Tensor>>,
        values: &[(String, Tensor)],
    ) -> Result<(), Error> {
        let given: Vec<String> = values.iter().map(|(name, _)| name.clone()).collect();
        let own: Vec<String> = own.keys().cloned().collect();
        let all = self.engine.share((own, given))?;
        let here = self.engine.world().map_or(0, |world| world.rank());
        let has: HashMap<&String, usize> = all
            .iter()
            .enumerate()
            .flat_map(|(rank, (own, _))| own.iter().map(move |name| (name, rank)))
            .collect();
        let given: Vec<HashSet<&String>> = all
            .iter()
            .map(|(_, given)| given.iter().collect())
            .collect();
        for (rank, (_, names)) in all.iter().enumerate() {
            for name in names {
                let why = match has.get(name) {
                    Some(owner) if given[*owner].contains(name) => continue,
                    Some(owner) => format!(
                        "rank {rank} loads `{name}`, and rank {owner}, which has it, does not: all \
                         processes of a pipeline load the same names"
                    ),
                    None if rank == here => format!("the model has no parameter `{name}`"),
                    None => format!("rank {rank} loads `{name}`, which the model does not have"),
                };
                return Err(wrong(why));
            }
        }
        Ok(())
    }

    /// Clears accumulated gradients without using them.
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn zero_grad(&mut self) -> Result<(), Error> {
        self.engine.agree_on_call("zero_grad", Ok(()))?;
        let cleared = self
            .engine
            .on_each(|_, stage| Ok(stage.accumulator().zero_grad()?));
        self.engine.conclude(cleared.map(drop))
    }

    /// Stops training the parameters that `chosen` selects: they get no gradients and optimizers
    /// leave them unchanged. Their accumulated gradients are dropped.
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn freeze(
        &mut self,
        chosen: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.set_trainable(chosen, false)
    }

    /// Trains the parameters that `chosen` selects (again).
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn unfreeze(
        &mut self,
        chosen: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.set_trainable(chosen, true)
    }

    fn set_trainable(
        &mut self,
        chosen: impl Fn(&str) -> bool + Send + Sync + 'static,
        trainable: bool,
    ) -> Result<(), Error> {
        let call = if trainable { "unfreeze" } else { "freeze" };
        let own = self.check_between_rounds(call);
        self.engine.agree_on_call(call, own)?;
        let set = self
            .engine
            .on_each(move |_, stage| stage.committed()?.set_trainable(&chosen, trainable));
        let set = set.and_then(|_| self.ties.follow(&mut self.engine));
        self.engine.conclude(set)
    }
}

impl Optimizer {
    /// Applies the accumulated gradients to every parameter, each stage on its
    /// own thread and all at once, and clears them.
    ///
    /// No stage begins before every stage has the resources that it needs, above all memory: a
    /// failed preparation changes no parameter on any stage, and the gradients remain usable.
    ///
    /// # Errors
    /// [`Error::Update`] for a failure after that (copying [offloaded](Optimizer::offload) states,
    /// for example): the next operation on the pipeline, this one included, finishes the update
    /// first.
    ///
    /// [`Error::Settings`] for an invalid hyperparameter (a negative learning rate, for example). A
    /// stage, named in the error, has no memory for the optimizer state of its parameters, or a
    /// gradient that no update is defined for. With several processes: another process updates
    /// differently (with another learning rate, for example).
    pub fn step(&mut self, pipe: &mut Pipeline) -> Result<(), Error> {
        let (id, alive) = (self.id(), self.alive());
        let groups = self.groups();
        let call = match &groups {
            Ok(groups) if pipe.engine.are_spread() => format!("Optimizer::step with {groups}"),
            _ => String::new(),
        };
        let groups = pipe.engine.begin_call(&call, groups)?;
        let all_async = pipe.engine.all_async();
        let _watch = all_async.then(|| pipe.engine.watch()).transpose()?;
        let ties = pipe.ties.clone();
        let engine = pipe.engine();
        let groups = Arc::new(groups);
        let own = Arc::clone(&groups);
        let round = engine.local().map(LocalSteps::next);
        let first = round.is_some_and(|round| round.first);
        let prepared =
            engine.on_each(move |_, stage| stage.prepare_updates(id, &alive, &own, first));
        if let Err(error) = engine.conclude(prepared) {
            engine.on_each(move |_, stage| {
                stage.abandon_updates(id);
                Ok(())
            })?;
            return Err(error);
        }
        let phase = Phase::Updating;
        engine.update(Update {
            id,
            groups,
            ties,
            round,
            phase,
        })
    }
}

/// Parameters of a copy of a stage, and whether it owns them.
type Owned = Vec<((String, Tensor), bool)>;

/// Returns for each parameter, by stage, the copy that owns it; the first local one if the owner is
/// elsewhere.
fn owned_first(copies: Vec<(StageId, Owned)>) -> Vec<(String, Tensor)> {
    let mut stages: Vec<(StageId, Owned)> = Vec::new();
    for (stage, copy) in copies {
        match stages.last_mut() {
            Some((last, chosen)) if *last == stage => {
                let owned = chosen.iter_mut().zip(copy).filter(|(_, (_, owned))| *owned);
                owned.for_each(|(chosen, own)| *chosen = own);
            }
            _ => stages.push((stage, copy)),
        }
    }
    let all = stages.into_iter().flat_map(|(_, chosen)| chosen);
    all.map(|(named, _)| named).collect()
}

fn cloned(named: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    named
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
        .collect()
}

fn wrong(why: String) -> Error {
    SettingsError::invalid(Setting::Weights, why).into()
}
