//! An engine that is made to fail and must then work as if new.

use super::affine::{Affine, Grads, Settings};
use super::{affine_engine, entries, oracle};
use gpipe_engine::{Engine, EngineError, Program, StageError, Topology};
use gpipe_partitioner::{CheckedSchedule, MicroId};
use std::sync::Arc;

const SEED: i64 = 77;

pub struct Rig {
    pub engine: Engine<Affine>,
    pub program: Arc<Program>,
    /// Gradients that every stage must have accumulated: those of the good steps, and nothing else.
    sum: Vec<Grads>,
}

impl Rig {
    /// Creates an engine of stages in a chain, and runs one good step.
    pub fn new(schedule: CheckedSchedule) -> Self {
        let stages = schedule.schedule().stages();
        let topology = Arc::new(Topology::chain(stages));
        let engine = affine_engine(&schedule, &topology);
        let program = Arc::new(Program::new(schedule, &topology).unwrap());
        let mut rig = Self {
            engine,
            program,
            sum: vec![Grads::default(); stages],
        };
        rig.check_unharmed();
        rig
    }

    /// Runs a step that must fail, with inputs other than the good ones.
    pub fn fail(&mut self, settings: Settings) -> EngineError {
        let entries = entries(&self.program, SEED + 1);
        self.engine
            .step(&self.program, Arc::new(settings), entries)
            .unwrap_err()
    }

    /// Checks that the next step gives the same result as without the failed ones.
    pub fn check_unharmed(&mut self) {
        let entries = entries(&self.program, SEED);
        let outcome = self
            .engine
            .step(&self.program, Arc::default(), entries)
            .unwrap();
        let schedule = self.program.schedule();
        let (micros, training) = (schedule.schedule().micro_batches(), schedule.is_training());
        let expected = oracle(self.program.topology(), micros, training, SEED);
        assert_eq!(outcome.exits, expected.exits);
        assert_eq!(outcome.gradients, expected.gradients);
        assert!(schedule.accumulates_in_order());
        for (sum, step) in self.sum.iter_mut().zip(&expected.grads) {
            sum.weight = sum.weight.wrapping_add(step.weight);
            sum.bias = sum.bias.wrapping_add(step.bias);
            for micro in (0..micros).map(MicroId).filter(|_| training) {
                // Changes only the order.
                sum.add(0, 0, micro);
            }
        }
        let now = self.engine.on_each(|_, stage| Ok(stage.grads)).unwrap();
        assert_eq!(now, self.sum);
    }
}

/// Returns the failure of a stage; panics for any other error.
pub fn stage_error(error: EngineError) -> StageError {
    match error {
        EngineError::Stage(error) => error,
        other => panic!("not the failure of a stage: {other}"),
    }
}
