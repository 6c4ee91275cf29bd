//! Schedules compiled for the numbers of micro-batches that occur.

use std::collections::HashMap;
use std::sync::Arc;

use gpipe_partitioner::{ScheduleKind, Shape, StageId};

use crate::engine::{Edge, End, Program, Topology};
use crate::error::Error;

/// What a program is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// Forwards and backwards; the gradient of the input may be wanted.
    Train { input_gradient: bool },
    /// Forwards only.
    Infer,
}

/// A schedule's programs, made when first needed: a batch with fewer samples
/// than micro-batches runs in fewer.
#[derive(Debug)]
pub(super) struct Programs {
    kind: ScheduleKind,
    stages: usize,
    micro_batches: usize,
    made: HashMap<(Purpose, usize), Arc<Program>>,
}

impl Programs {
    /// # Errors
    /// The schedule does not exist for these numbers.
    pub(super) fn new(
        kind: ScheduleKind,
        stages: usize,
        micro_batches: usize,
    ) -> Result<Self, Error> {
        let mut programs = Self {
            kind,
            stages,
            micro_batches,
            made: HashMap::new(),
        };
        programs.get(
            Purpose::Train {
                input_gradient: false,
            },
            micro_batches,
        )?;
        Ok(programs)
    }

    /// Micro-batches of a full step.
    pub(super) fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The program for this many micro-batches.
    pub(super) fn get(
        &mut self,
        purpose: Purpose,
        micro_batches: usize,
    ) -> Result<Arc<Program>, Error> {
        if let Some(program) = self.made.get(&(purpose, micro_batches)) {
            return Ok(Arc::clone(program));
        }
        let kind = if purpose == Purpose::Infer {
            ScheduleKind::ForwardOnly
        } else {
            self.kind
        };
        let shape = Shape {
            devices: self.stages,
            chunks: 1,
            micro_batches,
        };
        let program = Program::new(kind.generate(shape)?, &topology(purpose, self.stages)?)?;
        let program = Arc::new(program);
        self.made
            .insert((purpose, micro_batches), Arc::clone(&program));
        Ok(program)
    }
}

/// The chain of stages: the input enters the first, the target the last; the
/// loss (or the output) leaves the last.
fn topology(purpose: Purpose, stages: usize) -> Result<Topology, Error> {
    let stage = |number: usize| End::Stage(StageId(number));
    let train = purpose != Purpose::Infer;
    let gradient = purpose
        == Purpose::Train {
            input_gradient: true,
        };
    let mut edges = vec![Edge {
        from: End::Caller,
        to: stage(0),
        gradient,
    }];
    edges.extend((1..stages).map(|to| Edge {
        from: stage(to - 1),
        to: stage(to),
        gradient: train,
    }));
    let last = stage(stages.saturating_sub(1));
    if train {
        edges.push(Edge {
            from: End::Caller,
            to: last,
            gradient: false,
        });
    }
    edges.push(Edge {
        from: last,
        to: End::Caller,
        gradient: false,
    });
    Ok(Topology::new(stages, edges)?)
}
