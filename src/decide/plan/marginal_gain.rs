//! Gain from one more device or GiB.

use gpipe_partitioner::{More, Plan};

use crate::titled_lines::Said;

/// A smaller relative gain counts as none.
const SHORTER: f64 = 0.0005;

/// Returns the gain, if it was computed.
pub(super) fn said(plan: &Plan) -> Option<Said> {
    let words = |more: &More| {
        let saved = 1.0 - more.step.get() / plan.step.get();
        if saved > SHORTER {
            let percent = 100.0 * saved;
            format!(
                "{}: a step of {}, {percent:.1} % less",
                more.what, more.step
            )
        } else {
            format!("{}: no shorter step", more.what)
        }
    };
    let more: Vec<String> = plan.more.iter().map(words).collect();
    (!more.is_empty()).then(|| Said::new("more", format!("with {}", more.join("; with "))))
}
