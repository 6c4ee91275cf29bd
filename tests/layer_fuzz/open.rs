//! Programs that the plain loop runs and a pipeline need not, which are left out. Each is a line that can be
//! removed once the pipeline agrees with plain tch.

use crate::program::{Holds, How, Input, Layer, Op, Program};

/// The library's error for values that it cannot carry across a cut.
pub(crate) const REFUSED: &str = "share memory, but not their gradients";

/// The error for a layer that writes to something in one micro-batch only: whether a value is a view or a
/// copy may depend on sizes.
pub(crate) const NEWLY: &str = "which they had not done before";

/// The reason why a program is left out.
pub(crate) fn in_program(program: &Program) -> Option<&'static str> {
    let inputs = || program.batch.inputs.iter();
    if program.writes() && inputs().any(|input| input.holds == Holds::Again) {
        return Some("one of two inputs that share memory may be changed: is the other?");
    }
    let together = |layer: &Layer| {
        let stashes = layer.ops.iter().any(|op| matches!(op, Op::Stash { .. }));
        layer.outputs.len() > 1 || stashes
    };
    let asks = |input: &Input| input.gradient && input.how == How::Expanded;
    if inputs().any(asks) && program.layers.iter().any(together) {
        return Some(
            "elements of the input lie on each other: where parts of it leave a layer together, \
             only the sum of their gradients is right",
        );
    }
    None
}
