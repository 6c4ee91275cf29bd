// The cells of recurrent networks, which libtorch has fused kernels of for CUDA alone: put
// together in the order in which libtorch's cells for the CPU compute, so that the bits are theirs.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace sim {

namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

bool is_there(const std::optional<Tensor>& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor with_bias(const Tensor& gates, const Bias& bias) { return is_there(bias) ? gates + *bias : gates; }

Tensor or_zeros(const std::optional<Tensor>& grad, const Tensor& like) {
  return is_there(grad) ? *grad : at::zeros_like(like);
}

Tensor sum_of_batch(const Tensor& grad, bool wanted) { return wanted ? grad.sum(0) : Tensor(); }

// The workspace holds the gates behind their activations, as CUDA's does.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                                             const Bias& input_bias, const Bias& hidden_bias) {
  const auto part = (with_bias(hidden, hidden_bias) + with_bias(input, input_bias)).chunk(4, 1);
  const auto i = part[0].sigmoid(), f = part[1].sigmoid(), g = part[2].tanh(), o = part[3].sigmoid();
  const auto cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto part = workspace.chunk(4, 1);
  const auto &i = part[0], &f = part[1], &g = part[2], &o = part[3];
  const auto gh = or_zeros(grad_hy, cx), gc = or_zeros(grad_cy, cx);
  const auto t = cy.tanh();
  const auto all = at::tanh_backward(gh * o, t) + gc;
  const auto gates = at::cat({at::sigmoid_backward(all * g, i), at::sigmoid_backward(all * cx, f),
                              at::tanh_backward(all * i, g), at::sigmoid_backward(gh * t, o)}, 1);
  return {gates, all * f, sum_of_batch(gates, has_bias)};
}

// The workspace holds the activations of the gates, the state before, and the state's part of
// the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                                    const Bias& input_bias, const Bias& hidden_bias) {
  const auto from_input = with_bias(input, input_bias).chunk(3, 1);
  const auto from_state = with_bias(hidden, hidden_bias).chunk(3, 1);
  // The CPU adds where the state's gates are, one row behind another with a gap: how many of a row
  // are computed at once, and how many one by one, decides on the last bit of `sigmoid`.
  auto gates = at::cat(from_state, 1).chunk(3, 1);
  const auto r = gates[0].add_(from_input[0]).sigmoid_(), z = gates[1].add_(from_input[1]).sigmoid_();
  const auto n = (from_input[2] + from_state[2] * r).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, from_state[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto part = workspace.chunk(5, 1);
  const auto &r = part[0], &z = part[1], &n = part[2], &hx = part[3], &from_state = part[4];
  const auto kept = grad_hy * z;
  const auto new_gate = at::tanh_backward(grad_hy - kept, n);
  const auto reset = at::sigmoid_backward(new_gate * from_state, r);
  const auto update = at::sigmoid_backward(grad_hy * (hx - n), z);
  const auto input = at::cat({reset, update, new_gate}, 1), hidden = at::cat({reset, update, new_gate * r}, 1);
  return {input, hidden, kept, sum_of_batch(input, has_bias), sum_of_batch(hidden, has_bias)};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace
}  // namespace sim
