//! Values sent to other processes, with NCCL and through host memory.

use crate::processes;

/// The numbers of some steps, with both carriers, with and without a failure in between.
pub(super) fn over_processes() {
    for by_nccl in [true, false] {
        for (outputs, sums) in processes::some_steps(by_nccl) {
            let outputs = outputs.into_iter().flat_map(|(_, numbers)| numbers);
            let sums = sums.into_iter().map(|(_, sum)| sum);
            super::print(&outputs.chain(sums).collect::<Vec<_>>(), &[]);
        }
    }
}
