// The shapes of an operator's results, before it runs.
#pragma once

#include "operator.h"

namespace sim {

struct ResultShape {
  bool defined = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType type = at::kFloat;
};

// Shapes of the tensors of each result; empty for results that are arguments. Determined once for
// each combination of shapes and numbers, by running the CPU's kernel on zeros.
std::vector<std::vector<ResultShape>> result_shapes(const Operator& op, const Stack& cpu);

// A CPU tensor of this shape, of zeros.
at::Tensor of_zeros(const at::Tensor& tensor);
// The operator's stack after running the CPU's kernel on zeros.
Stack run_on_zeros(const Operator& op, const Stack& cpu);

// Resizes empty `out` arguments to the size that the operator determines.
void resize_outs(const Operator& op, const Stack& given, Stack& cpu);

}  // namespace sim
