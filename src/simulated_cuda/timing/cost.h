// How long an operator's kernel takes.
#pragma once

#include "../operators/operator.h"

namespace sim::timing {

// In seconds, by the roofline: what takes longer of operations and bytes.
double kernel_seconds(const Operator& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);
// One that does so many operations on numbers of this type and reads and writes so many bytes.
double kernel_seconds(double flops, c10::ScalarType type, double bytes);
// Bytes of what a tensor has: what is repeated in it counts once.
double bytes_in(const at::Tensor& tensor);

}  // namespace sim::timing
