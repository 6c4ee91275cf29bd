//! What a pipeline is not held to: programs that the plain loop runs and that are left out.
//! Each is a line that can go once the pipeline does what plain tch does.

use crate::program::{Holds, Program};

/// How the library refuses what it cannot carry across a cut.
pub(crate) const REFUSED: &str = "share memory, but not their gradients";

/// Why a program is left out.
pub(crate) fn in_program(program: &Program) -> Option<&'static str> {
    let inputs = || program.batch.inputs.iter();
    if program.writes() && inputs().any(|input| input.holds == Holds::Again) {
        return Some("one of two inputs that share memory may be changed: is the other?");
    }
    None
}
