// Operators that a GPU has kernels for and the CPU has not, put together from others.
#include "../timing/attention.h"

#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace sim {

namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto kept = at::empty_like(input);
  kept.bernoulli_(1 - p);
  const double scale = p < 1 ? 1 / (1 - p) : 0;
  return {input.mul(kept).mul_(scale), kept.to(at::kBool)};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  return grad.mul(mask).mul(scale);
}

// sdp::SDPBackend::math where something is computed: the CPU has no other that gives the same.
int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor&, const std::optional<Tensor>& mask,
                         double dropout, bool, std::optional<double>, bool) {
  const bool masked = mask.has_value() && mask->defined();
  return timing::attention_kernel(query, !masked && dropout == 0 && query.size(1) == key.size(1));
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
}

}  // namespace
}  // namespace sim

// `scaled_dot_product_attention` asks this one; the operator of the same name is for others.
namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &sim::fused_sdp_choice)
}  // namespace at::native
