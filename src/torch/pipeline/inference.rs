//! Inference: outputs without gradients.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpipe_partitioner::StageId;
use tch::Tensor;

use super::Pipeline;
use super::ranks::CopyId;
use super::stages::Stepped;
use super::wiring::Purpose;
use crate::error::{Error, Setting, SettingsError};
use crate::{Mode, Values, batch};
use gpipe_engine::Program;

impl Pipeline {
    /// Computes the outputs for `input` in inference mode, streamed through the same stages in as
    /// many micro-batches; keeps no graph.
    ///
    /// # Errors
    /// As [`Pipeline::train_step`].
    pub fn forward_values(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
    ) -> Result<Values, Error> {
        self.infer(input, None, self.programs.micro_batches())
    }

    /// Runs [`Pipeline::forward_values`] in one micro-batch.
    ///
    /// # Errors
    /// As [`Pipeline::train_step`].
    pub fn forward_at_once(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
    ) -> Result<Values, Error> {
        self.infer(input, None, 1)
    }

    /// [`Pipeline::forward`] for sequences whose tokens come piece by piece: `past` tokens of
    /// each came in earlier calls, and the layers of every stage have kept what they need of
    /// them (a KV cache). 0 begins anew.
    ///
    /// The layers are to heed [`Context::past`](crate::Context::past), as those of the zoo's
    /// models that cache do; others take the tokens for
    /// a sequence of their own. Each call has as many sequences as the first one, in as many
    /// micro-batches.
    ///
    /// *Shapes*: tokens `[batch, new]`; of a language model the logits are `[batch, new, vocab]`.
    ///
    /// # Errors
    /// As [`Pipeline::forward`], and where a cache has fewer than `past` tokens.
    #[doc(alias = "past_key_values")]
    pub fn decode(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
        past: usize,
    ) -> Result<Tensor, Error> {
        one(self.infer(input, Some(past), self.programs.micro_batches())?)
    }

    fn infer(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
        past: Option<usize>,
        micro_batches: usize,
    ) -> Result<Values, Error> {
        let input = input.try_into().map_err(Into::into);
        let given = input.and_then(|input| self.prepare_inference(&input, micro_batches));
        let call = given.as_ref().map_or_else(
            |_| String::new(),
            |(program, _)| format!("an inference of {} micro-batches", program.micro_batches()),
        );
        let (program, columns) = self.engine.begin_call(&call, given)?;
        let stepped = self
            .engine
            .step(&program, self.steps, Mode::Infer { past }, columns)?;
        let outputs = self.outputs(&program, stepped);
        self.engine.conclude(outputs)
    }

    fn prepare_inference(
        &mut self,
        input: &Values,
        micro_batches: usize,
    ) -> Result<(Arc<Program>, Vec<Vec<Values>>), Error> {
        let samples = batch::samples(input, "input", None)?;
        let sizes = batch::sizes(samples, micro_batches);
        let program = self.programs.get(Purpose::Infer, sizes.len())?;
        Ok((program, vec![batch::scatter(input, &sizes)?]))
    }

    /// Returns the last stage's outputs, in all processes.
    fn outputs(&self, program: &Program, stepped: Stepped) -> Result<Values, Error> {
        let exits = stepped.outcome.exits.into_iter();
        let mut exits = exits.map(|((_, micro), sent)| (micro.index(), sent.values));
        let parts = if self.engine.are_spread() {
            let mut here: BTreeMap<usize, Values> = exits.collect();
            let mut parts = Vec::new();
            for replica in 0..self.engine.replicas() {
                let own = program.micro_batches_of(replica);
                if own.is_empty() {
                    continue;
                }
                let own = own.filter_map(|micro| here.remove(&micro)).collect();
                // Empty if another process has it.
                let own = self.in_one(own)?;
                parts.push(self.engine.broadcast(own, self.last_stage(replica))?);
            }
            parts
        } else {
            exits.by_ref().map(|(_, values)| values).collect()
        };
        self.in_one(parts)
    }

    /// Returns the last stage of a replica.
    fn last_stage(&self, replica: usize) -> CopyId {
        let stage = StageId(self.partition.stages().saturating_sub(1));
        CopyId { stage, replica }
    }

    /// Joins the parts of an output, which copies of a stage may have left on several devices, on
    /// the device of the first part.
    fn in_one(&self, parts: Vec<Values>) -> Result<Values, Error> {
        let outputs = batch::gather(batch::together(parts)?)?;
        let widened = |output| self.precision.widened(output);
        Ok(tch::no_grad(|| outputs.try_map(widened))?)
    }

    /// Runs [`Pipeline::forward_values`] for a model with one output.
    ///
    /// # Errors
    /// As [`Pipeline::train_step`], and if there is not exactly one output.
    pub fn forward(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
    ) -> Result<Tensor, Error> {
        one(self.forward_values(input)?)
    }
}

/// Returns the only output of a model.
fn one(outputs: Values) -> Result<Tensor, Error> {
    outputs.into_one().map_err(|error| {
        let why = format!("the model's outputs: {error}; use `forward_values`");
        SettingsError::invalid(Setting::Model, why).into()
    })
}
