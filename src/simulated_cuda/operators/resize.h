// Tensors whose size an operator determines.
#pragma once

#include <ATen/core/Tensor.h>

namespace sim {

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format);

}  // namespace sim
