//! Programs that once failed, minimized.

use gpipe::partitioner::ScheduleKind;

use crate::check;
use crate::program::{
    After, Batch, Holds, How, Input, Layer, Loss, Op, Program, Recomputing, Scheduled, Settings,
};

/// Two samples in one micro-batch, one step on one device.
fn program(layers: Vec<Layer>) -> Program {
    Program {
        batch: Batch {
            samples: 2,
            inputs: vec![input(How::Own)],
            target: How::Own,
            double: false,
        },
        layers,
        loss: Loss::Mean,
        steps: vec![After::Zero],
        settings: Settings {
            devices: 1,
            chunks: 1,
            micro_batches: 1,
            schedule: Scheduled::Kind(ScheduleKind::GPipe),
            cut: Vec::new(),
            recompute: Recomputing::Never,
            offload: Vec::new(),
        },
    }
}

fn input(how: How) -> Input {
    Input {
        holds: Holds::Floats,
        how,
        gradient: false,
    }
}

fn layer(ops: &[Op], outputs: &[usize]) -> Layer {
    Layer {
        ops: ops.to_vec(),
        outputs: outputs.to_vec(),
        tied: false,
        frozen: (false, false),
        idle: false,
    }
}

fn given(how: How, mut program: Program) -> Program {
    program.batch.inputs = vec![input(how)];
    program
}

/// Runs the program on one device, and on as many as it has layers.
fn everywhere(program: &Program) {
    for devices in 1..=program.layers.len() {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::ZbH1] {
            for recompute in [Recomputing::Never, Recomputing::Always] {
                for micro_batches in 1..=2 {
                    let mut program = program.clone();
                    program.settings = Settings {
                        devices,
                        schedule: Scheduled::Kind(schedule),
                        recompute: recompute.clone(),
                        micro_batches,
                        ..program.settings
                    };
                    check::one(&program);
                }
            }
        }
    }
}

/// Regression test: a slice counted as its own copy, since libtorch cannot say quickly whether its elements
/// overlap.
#[test]
fn an_input_that_is_a_slice_is_copied_before_it_is_written_to() {
    let double = layer(&[Op::DoubleIn(0)], &[0]);
    let linear = layer(&[Op::Linear(0)], &[0]);
    for how in [How::Columns, How::Rows, How::Transposed] {
        everywhere(&given(how, program(vec![double.clone(), linear.clone()])));
    }
}

/// Regression test: for the same reason the run that detects a stage's writes overwrote its own results.
#[test]
fn a_slice_that_another_stage_writes_to() {
    let slice = Op::Narrow {
        of: 0,
        dim: 1,
        start: 1,
        len: 2,
    };
    everywhere(&program(vec![
        layer(&[Op::Linear(0), slice], &[0]),
        layer(&[Op::DoubleIn(0)], &[0]),
        layer(&[Op::Linear(0)], &[0]),
    ]));
}

/// Regression test: likewise, a stashed slice was not a snapshot.
#[test]
fn a_stashed_slice_is_a_snapshot() {
    let slice = Op::Narrow {
        of: 0,
        dim: 1,
        start: 1,
        len: 2,
    };
    everywhere(&program(vec![
        layer(&[Op::Linear(0), slice, Op::Stash { name: 0, of: 0 }], &[0]),
        layer(&[Op::DoubleIn(0)], &[0]),
        layer(&[Op::Pop { name: 0 }, Op::Add(0, 1)], &[0]),
    ]));
}

/// Regression test: each output was a separate variable over the same memory, so autograd did not know that
/// changing one changes the other.
#[test]
fn a_value_returned_twice_and_changed_once() {
    for writes in [Op::DoubleIn(1), Op::MaskIn(0), Op::TimesBiasIn(0)] {
        everywhere(&program(vec![
            layer(&[Op::Linear(0)], &[0, 0]),
            layer(&[writes, Op::Add(0, 1)], &[0]),
        ]));
    }
}

/// Regression test: the split backward gave the node of a written view other edges than the inner node has.
#[test]
fn a_parameter_written_into_a_view() {
    let slice = Op::Narrow {
        of: 0,
        dim: 0,
        start: 0,
        len: 0,
    };
    for writes in [Op::CopyBiasIn(0), Op::TimesBiasIn(0), Op::AddBiasIn(0)] {
        everywhere(&program(vec![
            layer(&[Op::Linear(0)], &[0]),
            layer(&[slice, writes], &[0, 1]),
        ]));
    }
}

/// Regression test: a layer's second run saw its buffers as changed by the first, and by later micro-batches.
#[test]
fn a_buffer_that_moves_before_it_is_read() {
    for moves in [
        Op::Center(0),
        Op::CenterBefore(0),
        Op::Count(0),
        Op::SpectralNorm(0),
    ] {
        everywhere(&program(vec![layer(
            &[Op::Linear(0), moves, Op::Tanh(0), Op::Linear(0)],
            &[0],
        )]));
    }
}

/// Regression test: for a parameter that one layer returns and the next changes, the cut decided whether the
/// parameter itself changed.
#[test]
fn a_parameter_given_to_the_next_layer_which_changes_it() {
    everywhere(&program(vec![
        layer(&[Op::Weight], &[0]),
        layer(&[Op::DoubleIn(0)], &[0]),
    ]));
}

/// Regression test: an expanded tensor counted as not writable.
#[test]
fn an_expanded_input_that_is_filled() {
    everywhere(&given(
        How::Expanded,
        program(vec![
            layer(&[Op::FillIn(0)], &[0]),
            layer(&[Op::Linear(0)], &[0]),
        ]),
    ));
}

/// Regression test: writes to stashed values were looked for in layers only, so the loss function's change of
/// a popped value also changed the stashed one.
#[test]
fn a_popped_value_that_the_loss_function_writes_to() {
    let mut program = program(vec![
        layer(&[Op::Linear(0), Op::Stash { name: 0, of: 0 }], &[0]),
        layer(&[Op::Halve(0), Op::Pop { name: 0 }], &[0, 1, 2]),
    ]);
    program.loss = Loss::OutputsInPlace;
    everywhere(&program);
}

/// Regression test: only inputs were copied.
#[test]
fn a_target_that_the_loss_function_writes_to() {
    let mut program = program(vec![layer(&[Op::Linear(0)], &[0])]);
    program.loss = Loss::TargetInPlace;
    everywhere(&program);
}

/// Regression test: for a part of a tensor that is passed twice, gradients were added to those of its other
/// uses at the whole tensor within a stage, but at the part across a cut, in another order.
#[test]
fn a_part_given_twice_beside_other_uses_of_it() {
    let half = Op::Halves { of: 0, dim: 1 };
    for double in [false, true] {
        let mut program = program(vec![
            layer(&[Op::Linear(0), half], &[0]),
            layer(&[Op::Add(0, 0), Op::Tanh(0)], &[2, 0, 2]),
        ]);
        program.batch.double = double;
        everywhere(&program);
    }
}

/// Regression test: a part that left a layer was still a part of the whole tensor for the next layer. If that
/// changed it in place, the gradients of earlier uses bypassed the change, and joined those after it
/// elsewhere than across a cut.
#[test]
fn a_part_that_is_used_and_then_written_to() {
    let half = Op::Narrow {
        of: 0,
        dim: 1,
        start: 1,
        len: 2,
    };
    for double in [false, true] {
        let mut program = program(vec![
            layer(&[Op::Linear(0), half], &[0]),
            layer(
                &[Op::Add(0, 0), Op::DoubleIn(1), Op::Tanh(1), Op::Times(1, 0)],
                &[0],
            ),
        ]);
        program.batch.double = double;
        everywhere(&program);
    }
}

/// Regression test: across a cut, values that share memory without autograd's knowledge became views of one
/// tensor, so a parameter's effect on one gave the others a gradient, too.
#[test]
fn a_detached_value_beside_what_it_was_detached_from() {
    let part = Op::Narrow {
        of: 0,
        dim: 1,
        start: 1,
        len: 2,
    };
    for writes in [Op::TimesBiasIn(2), Op::AddBiasIn(2), Op::TimesBiasIn(1)] {
        everywhere(&program(vec![
            layer(&[Op::Detach(0), part], &[2, 0, 0]),
            layer(&[writes], &[0]),
            layer(&[Op::Linear(0)], &[0]),
        ]));
    }
}

/// Regression test: parts of a batch's outputs were joined with autograd on, which refuses views created in
/// inference before a write to their base.
#[test]
fn a_weight_given_out_and_changed_in_part() {
    let slice = Op::Narrow {
        of: 0,
        dim: 0,
        start: 0,
        len: 1,
    };
    for outputs in [[0, 1], [1, 0]] {
        everywhere(&program(vec![
            layer(&[Op::Weight], &[0]),
            layer(&[slice, Op::DoubleIn(0)], &outputs),
        ]));
    }
}

/// Regression test: only layers got copies of parameters, so the loss function wrote to the weight itself.
#[test]
fn a_parameter_that_the_loss_function_writes_to() {
    let slice = Op::Narrow {
        of: 0,
        dim: 0,
        start: 1,
        len: 2,
    };
    for (ops, outputs) in [
        (vec![Op::Weight], vec![0]),
        (vec![Op::Weight, slice], vec![0]),
        (vec![Op::Linear(0), Op::Weight], vec![0, 1]),
    ] {
        let mut program = program(vec![layer(&[Op::Linear(0)], &[0]), layer(&ops, &outputs)]);
        program.loss = Loss::OutputsInPlace;
        program.steps = vec![After::Update, After::Keep];
        everywhere(&program);
    }
    // A parameter of another stage, which the last one passes on.
    let mut program = program(vec![
        layer(&[Op::Weight], &[0]),
        layer(&[Op::Linear(0)], &[1]),
    ]);
    program.loss = Loss::OutputsInPlace;
    program.steps = vec![After::Zero, After::Zero];
    everywhere(&program);
}

/// Regression test: values without elements did not count as shared memory, so autograd did not know that
/// changing one changes the other.
#[test]
fn an_empty_value_returned_twice_and_changed_once() {
    // The bias of the first layer has a negative sum.
    let none = [Op::Clone(0), Op::CopyBiasIn(0), Op::PositiveRows(0)];
    for output in [0, 1] {
        everywhere(&program(vec![
            layer(&none, &[0, 0]),
            layer(&[Op::TimesBiasIn(0)], &[output]),
        ]));
    }
    let part = Op::Narrow {
        of: 0,
        dim: 1,
        start: 1,
        len: 1,
    };
    everywhere(&program(vec![
        layer(&none, &[0]),
        layer(&[part, Op::TimesBiasIn(0)], &[0, 1]),
        layer(&[Op::DoubleIn(0)], &[0, 1]),
    ]));
}

/// Regression test: overlapping elements shared a gradient evenly as soon as the value was passed twice.
#[test]
fn an_expanded_input_that_asks_for_its_gradient_returned_twice() {
    let mut program = given(
        How::Expanded,
        program(vec![
            layer(&[Op::Same(0)], &[0, 0]),
            layer(&[Op::Tanh(0), Op::Times(0, 1)], &[0, 1]),
            layer(&[Op::Linear(0)], &[0]),
        ]),
    );
    program.batch.inputs[0].gradient = true;
    everywhere(&program);
}

/// Regression test: a layer's outputs were restored element by element, though an expanded tensor has several
/// in one place.
#[test]
fn a_parameter_given_out_expanded_and_changed() {
    everywhere(&program(vec![
        layer(&[Op::Weight], &[0]),
        layer(&[Op::Expand(0), Op::DoubleIn(1)], &[0]),
    ]));
}

/// Regression test: a partly written value was the root of a graph, and autograd cannot write the gradients
/// of overlapping elements.
#[test]
fn an_expanded_value_changed_in_part() {
    let select = Op::Select {
        of: 1,
        dim: 1,
        index: 0,
    };
    let times = Op::TimesBiasIn(0);
    for outputs in [vec![0], vec![0, 0], vec![0, 1]] {
        let inputs = outputs.len() - 1;
        everywhere(&program(vec![
            layer(&[Op::Linear(0), Op::Expand(0)], &outputs),
            layer(&[Op::Halve(0), select, times], &[0, 1, inputs + 2]),
            layer(&[Op::Linear(0)], &[0, 1]),
        ]));
    }
    everywhere(&program(vec![
        layer(&[Op::Expand(0)], &[0]),
        layer(&[Op::Halve(0), select, times], &[0]),
    ]));
    everywhere(&given(
        How::Expanded,
        program(vec![layer(&[Op::Halve(0), select, times], &[0, 1, 2])]),
    ));
}

/// Regression test: if the loss function wrote to a received value, it got a copy from the second step on
/// instead of a view, so the gradient had another layout, and kernels rounded differently.
#[test]
fn a_view_of_what_arrived_that_the_loss_function_writes_to() {
    let mut program = program(vec![
        layer(&[Op::Linear(0), Op::Linear(0)], &[0]),
        layer(&[Op::Transpose(0)], &[0]),
    ]);
    program.batch.inputs[0].gradient = true;
    program.loss = Loss::OutputsInPlace;
    program.steps = vec![After::Zero, After::Zero];
    program.settings.devices = 2;
    check::one(&program);
}

/// Regression test: the next layer got the frozen weight itself and wrote a bias into it; autograd then
/// treated the weight as a sum, and its backward failed.
#[test]
fn a_frozen_weight_given_out_that_a_bias_is_written_into() {
    let add = Op::AddIn { to: 1, from: 0 };
    let mut owner = layer(&[Op::Weight], &[0]);
    owner.frozen = (true, false);
    everywhere(&program(vec![
        owner,
        layer(&[Op::Times(0, 0), Op::AddBiasIn(0), add], &[0]),
    ]));
}
