// Duration of an operator's kernel.
#pragma once

#include "../operators/operator.h"

namespace sim::timing {

// In seconds, by the roofline model: the larger of the times for operations and bytes.
double kernel_seconds(const Operator& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);
// Duration for this many operations on numbers of this type, and this many bytes read and written.
double kernel_seconds(double flops, c10::ScalarType type, double bytes);
// Bytes in a tensor; repeated ones count once.
double bytes_in(const at::Tensor& tensor);

}  // namespace sim::timing
