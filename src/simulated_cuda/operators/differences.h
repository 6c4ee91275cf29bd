// Operators of which the CPU's kernels do less than a GPU's, or the same in another way.
#pragma once

#include "operator.h"

namespace sim {

// Runs the CPU's kernel on CPU tensors; the results are on the stack behind it.
void call_cpu(const Operator& op, Stack& values);

}  // namespace sim
