// The shapes of results where nothing is computed.
#pragma once

#include "../operators/operator.h"
#include "../operators/shapes.h"

namespace sim::timing {

// By result: the tensors that it is (none for results that are arguments), and what it is
// where it is no tensor.
struct Results {
  std::vector<std::vector<ResultShape>> tensors;
  Stack values;
};

// What a device whose memory is all zeros would give. Neither memory nor time goes by the sizes,
// but for a few operators that only small models have.
Results results_of(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace sim::timing
