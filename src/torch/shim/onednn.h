// oneDNN's kernels in place of libtorch's choice (onednn.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace gpipe {

// Whether oneDNN is on for this thread and computes the product of these two matrices.
bool onednn_multiplies(const at::Tensor& left, const at::Tensor& right);

// The product as the thread's operators compute it, and the same added to a contiguous `sum`.
at::Tensor onednn_product(const at::Tensor& left, const at::Tensor& right);
void onednn_add_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

// The two factors whose product is the gradient of a convolution's weight, as rows; none if this
// thread does not compute it so.
std::optional<std::pair<at::Tensor, at::Tensor>> onednn_weight_factors(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, const c10::SymInt& groups);

}  // namespace gpipe
