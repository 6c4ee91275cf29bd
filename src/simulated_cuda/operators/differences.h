// Operators whose CPU kernels do less than a GPU's, or do it differently.
#pragma once

#include "operator.h"

namespace sim {

// Runs the CPU's kernel on CPU tensors; leaves the results on the stack.
void call_cpu(const Operator& op, Stack& values);

}  // namespace sim
