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

// By result, the shapes of the tensors that it is; none for results that are arguments. The CPU's
// kernel tells, once for each combination of shapes and numbers, on zeros.
std::vector<std::vector<ResultShape>> result_shapes(const Operator& op, const Stack& cpu);

// A CPU tensor of this shape, of zeros.
at::Tensor of_zeros(const at::Tensor& tensor);
// The operator's stack behind a run of the CPU's kernel on zeros.
Stack run_on_zeros(const Operator& op, const Stack& cpu);

// Gives `out` arguments that are empty the size that the operator finds out.
void resize_outs(const Operator& op, const Stack& given, Stack& cpu);

}  // namespace sim
