// Shapes of results if nothing is computed.
#pragma once

#include "../operators/operator.h"
#include "../operators/shapes.h"

namespace sim::timing {

// By result: its tensors (none for results that are arguments), and its value if it is not a
// tensor.
struct Results {
  std::vector<std::vector<ResultShape>> tensors;
  Stack values;
};

// Results of a device whose memory is all zeros. Takes neither memory nor time in proportion to the
// sizes, except for a few operators that only small models have.
Results results_of(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace sim::timing
