// Operators with kernels for GPUs but not for the CPU, composed of others.
#include "../timing/attention.h"
#include "../timing/clock.h"

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
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

constexpr int64_t kFlash = 1, kEfficient = 2;  // of sdp::SDPBackend

// If the CPU has a fused kernel, returns the CUDA one with matching arguments.
int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                         bool groups) {
  if (timing::on()) {
    const bool masked = mask.has_value() && mask->defined();
    return timing::attention_kernel(query, !masked && dropout == 0 && query.size(1) == key.size(1));
  }
  const auto chosen = at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, groups);
  return chosen == kFlash ? kEfficient : chosen;
}

// Draws no random numbers: with dropout the CPU has no fused kernel.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(const Tensor& query, const Tensor& key,
                                                               const Tensor& value, const std::optional<Tensor>& bias,
                                                               bool, double dropout, bool causal,
                                                               std::optional<double> scale) {
  const auto [out, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale);
  const auto seed = at::empty({0}, query.options().dtype(at::kLong));
  return {out, logsumexp, seed, seed};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&, double dropout,
    std::array<bool, 4> wanted, bool causal, std::optional<double> scale) {
  TORCH_CHECK(!wanted[3], "simulated GPUs have no gradient of an attention's bias");
  const auto mask = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, out, logsumexp, dropout, causal, mask, scale);
  return {of_query, of_key, of_value, Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  if (!timing::on()) {
    m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient_attention));
    m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_attention_backward));
  }
}

}  // namespace
}  // namespace sim

// Called by `scaled_dot_product_attention`; the operator of the same name is for other devices.
namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &sim::fused_sdp_choice)
}  // namespace at::native
