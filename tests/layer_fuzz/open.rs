//! What a pipeline is not held to: programs that the plain loop runs and that are left out.
//! Each is a line that can go once the pipeline does what plain tch does.

use crate::program::{Holds, How, Input, Layer, Op, Program};

/// How the library refuses what it cannot carry across a cut.
pub(crate) const REFUSED: &str = "share memory, but not their gradients";

/// How it says that a layer writes to something in one micro-batch only: what is viewed and
/// what is copied may depend on sizes.
pub(crate) const NEWLY: &str = "which they had not done before";

/// Why a program is left out.
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
