// Operators of which only the time is simulated.
#pragma once

#include "../operators/operator.h"

namespace sim::timing {

// Replaces the arguments on the stack by the results: tensors without computed content.
void call(const Operator& op, Stack* stack);

}  // namespace sim::timing
