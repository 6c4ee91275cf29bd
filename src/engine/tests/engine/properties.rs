//! Any legal schedule over any topology computes what a plain loop computes.

use crate::support::{Fault, How, Settings, When, affine_engine, entries, oracle, watched};
use gpipe_engine::{Edge, End, Program, Topology};
use gpipe_partitioner::{Action, ActionKind, CheckedSchedule, MicroId, Schedule, StageId};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

/// Parameters of a random schedule; `choices` picks among the ready actions.
#[derive(Clone, Debug)]
struct Recipe {
    devices: Vec<usize>,
    micros: usize,
    training: bool,
    split: Vec<bool>,
    choices: Vec<usize>,
    edges: Vec<(usize, usize, bool)>,
    fault: usize,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    (1usize..=4, 1usize..=6).prop_flat_map(|(p, stages)| {
        let edges = prop::collection::vec((0..=stages, 0..=stages, any::<bool>()), 0..8);
        (
            prop::collection::vec(0..p, stages),
            1usize..=5,
            prop::bool::weighted(0.8),
            prop::collection::vec(any::<bool>(), stages),
            prop::collection::vec(0usize..1000, 1..64),
            edges,
            0usize..1000,
        )
            .prop_map(
                |(devices, micros, training, split, choices, edges, fault)| Recipe {
                    devices,
                    micros,
                    training,
                    split,
                    choices,
                    edges,
                    fault,
                },
            )
    })
}

impl Recipe {
    fn stages(&self) -> usize {
        self.devices.len()
    }

    /// Runs random ready actions, each on its stage's device, until all have run.
    fn schedule(&self) -> CheckedSchedule {
        let mut rows = vec![Vec::new(); self.devices.iter().max().unwrap() + 1];
        let mut done = HashSet::new();
        for turn in 0.. {
            let ready: Vec<Action> = self.all().filter(|a| self.is_ready(*a, &done)).collect();
            let Some(last) = ready.len().checked_sub(1) else {
                break;
            };
            let action = ready[self.choices[turn % self.choices.len()] % (last + 1)];
            rows[self.devices[action.stage.index()]].push(action);
            done.insert(action);
        }
        Schedule::new("random", self.stages(), self.micros, rows)
            .check()
            .unwrap()
    }

    fn all(&self) -> impl Iterator<Item = Action> + '_ {
        (0..self.stages()).flat_map(move |stage| {
            let split = self.split[stage];
            let kinds: &[ActionKind] = match (self.training, split) {
                (false, _) => &[ActionKind::Forward],
                (true, false) => &[
                    ActionKind::Forward,
                    ActionKind::Recompute,
                    ActionKind::Backward,
                ],
                (true, true) => &[
                    ActionKind::Forward,
                    ActionKind::BackwardInput,
                    ActionKind::BackwardWeight,
                ],
            };
            let all = kinds
                .iter()
                .flat_map(move |kind| (0..self.micros).map(move |m| (*kind, m)));
            all.map(move |(kind, m)| Action {
                stage: StageId(stage),
                kind,
                micro: MicroId(m),
            })
        })
    }

    fn is_ready(&self, action: Action, done: &HashSet<Action>) -> bool {
        let stage = action.stage.index();
        let ran = |stage: usize, kind| {
            done.contains(&Action {
                stage: StageId(stage),
                kind,
                ..action
            })
        };
        let gradient_there = || {
            let next = stage + 1;
            next == self.stages()
                || ran(next, ActionKind::Backward)
                || ran(next, ActionKind::BackwardInput)
        };
        !done.contains(&action)
            && match action.kind {
                ActionKind::Forward => stage == 0 || ran(stage - 1, ActionKind::Forward),
                ActionKind::Recompute => ran(stage, ActionKind::Forward),
                ActionKind::Backward => ran(stage, ActionKind::Recompute) && gradient_there(),
                ActionKind::BackwardInput => ran(stage, ActionKind::Forward) && gradient_there(),
                ActionKind::BackwardWeight => ran(stage, ActionKind::BackwardInput),
            }
    }

    /// Random edges, in random order, without those that a topology refuses.
    fn topology(&self) -> Topology {
        let stages = self.stages();
        let edges = self.edges.iter().filter_map(|&(a, b, gradient)| {
            let (low, high) = (a.min(b), a.max(b));
            let end = |index| End::Stage(StageId(index));
            match (low, high) {
                (a, b) if a == b => None,
                (stage, b) if b == stages => Some(Edge {
                    from: end(stage),
                    to: End::Caller,
                    gradient: false,
                }),
                (0, b) if gradient => Some(Edge {
                    from: End::Caller,
                    to: end(b),
                    gradient,
                }),
                (a, b) => Some(Edge {
                    from: end(a),
                    to: end(b),
                    gradient,
                }),
            }
        });
        let chain = Topology::chain(stages);
        Topology::new(stages, edges.chain(chain.edges().iter().copied()).collect()).unwrap()
    }

    fn fault(&self) -> Fault {
        let all: Vec<Action> = self.all().collect();
        let action = all[self.fault % all.len()];
        let when = When::Action(action.kind, action.micro);
        Fault {
            stage: action.stage,
            when,
            how: How::Error,
        }
    }
}

fn check(recipe: &Recipe) {
    let schedule = recipe.schedule();
    let topology = Arc::new(recipe.topology());
    let mut engine = affine_engine(&schedule, &topology);
    let program = Arc::new(Program::new(schedule, &topology).unwrap());
    let expected = oracle(&topology, recipe.micros, recipe.training, 3);
    for fails in [false, true, false] {
        let faults = if fails {
            vec![recipe.fault()]
        } else {
            Vec::new()
        };
        let settings = Settings {
            faults,
            ..Settings::default()
        };
        let result = engine.step(&program, Arc::new(settings), entries(&program, 3));
        if fails {
            let error = result.unwrap_err();
            assert_eq!(error.stage_error().unwrap().stage, recipe.fault().stage);
        } else {
            let outcome = result.unwrap();
            assert_eq!(outcome.exits, expected.exits);
            assert_eq!(outcome.gradients, expected.gradients);
        }
    }
    let grads = engine.on_each(|_, stage| Ok(stage.grads)).unwrap();
    for (got, once) in grads.iter().zip(&expected.grads) {
        assert_eq!(got.weight, once.weight.wrapping_mul(2));
        assert_eq!(got.bias, once.bias.wrapping_mul(2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_legal_schedule_over_any_topology_gives_the_right_sums(recipe in recipe()) {
        watched(move || check(&recipe));
    }
}
