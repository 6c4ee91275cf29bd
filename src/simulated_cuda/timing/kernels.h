// Operators of which only the time passes.
#pragma once

#include "../operators/operator.h"

namespace sim::timing {

// Replaces the arguments on the stack by the results: tensors of which nothing was computed.
void call(const Operator& op, Stack* stack);

}  // namespace sim::timing
