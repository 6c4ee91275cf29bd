// Recurrent networks, which libtorch computes differently on CUDA and the CPU: cells and layers are
// composed as on the CPU, so that the bits match.
#include "../timing/clock.h"

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
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

// The workspace holds the activated gates, as CUDA's does.
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

// The workspace holds the activated gates, the previous state, and the state's part of the new
// gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                                    const Bias& input_bias, const Bias& hidden_bias) {
  const auto from_input = with_bias(input, input_bias).chunk(3, 1);
  const auto from_state = with_bias(hidden, hidden_bias).chunk(3, 1);
  // The CPU adds in the memory of the state's gates, whose rows have gaps: how many elements of a
  // row are computed vectorized, and how many one by one, affects the last bit of `sigmoid`.
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

// All layers and directions. A layer has its weights, its index and its direction; it returns its
// outputs by time step.
struct Layers {
  at::TensorList weights;
  bool has_biases;
  int64_t count;
  double dropout;
  bool train;
  bool both_ways;
  bool batch_first;

  template <typename Run>
  Tensor operator()(const Tensor& given, Run&& run) const {
    const size_t directions = both_ways ? 2 : 1, each = has_biases ? 4 : 2;
    auto input = batch_first ? given.transpose(0, 1) : given;
    for (int64_t layer = 0; layer < count; ++layer) {
      std::vector<Tensor> outputs;
      for (size_t direction = 0; direction < directions; ++direction) {
        const size_t index = size_t(layer) * directions + direction;
        outputs.push_back(run(input, weights.slice(index * each, each), int64_t(index), direction > 0));
      }
      input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
      if (dropout != 0 && train && layer < count - 1) {
        input = at::dropout(input, dropout, true);
      }
    }
    return batch_first ? input.transpose(0, 1) : input;
  }
};

// As libtorch's `lstm` on the CPU if oneDNN supports the type: one kernel for each layer and
// direction instead of cells.
std::tuple<Tensor, Tensor, Tensor> lstm_of_onednn(const Layers& layers, const Tensor& given, const Tensor& hx,
                                                  const Tensor& cx) {
  constexpr int64_t kLstm = 2;
  std::vector<Tensor> h, c;
  const auto out = layers(given, [&](const Tensor& input, at::TensorList own, int64_t index, bool reverse) {
    const auto no_bias = layers.has_biases ? Tensor() : at::zeros(own[0].sizes(), own[0].options());
    const auto [output, hy, cy, workspace] = at::mkldnn_rnn_layer(
        input.contiguous(), own[0], own[1], layers.has_biases ? own[2] : no_bias,
        layers.has_biases ? own[3] : no_bias, hx.contiguous()[index], cx.contiguous()[index], reverse, {}, kLstm,
        hx.size(2), layers.count, layers.has_biases, layers.both_ways, layers.batch_first,
        at::GradMode::is_enabled());
    h.push_back(hy);
    c.push_back(cy);
    return output;
  });
  return {out, at::stack(h, 0), at::stack(c, 0)};
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx, at::TensorList weights,
                                        bool has_biases, int64_t layers, double dropout, bool train, bool both_ways,
                                        bool batch_first) {
  const bool projects = hx.size() == 2 && hx[0].size(2) != hx[1].size(2);
  if (hx.size() != 2 || projects || input.scalar_type() != at::kFloat || input.numel() == 0 ||
      !at::globalContext().userEnabledMkldnn()) {
    return at::native::lstm(input, hx, weights, has_biases, layers, dropout, train, both_ways, batch_first);
  }
  const Layers all{weights, has_biases, layers, dropout, train, both_ways, batch_first};
  return lstm_of_onednn(all, input, hx[0], hx[1]);
}

// As on the CPU: the inputs of all time steps are multiplied at once, without one fused kernel.
std::tuple<Tensor, Tensor> gru(const Tensor& given, const Tensor& hx, at::TensorList weights, bool has_biases,
                               int64_t count, double dropout, bool train, bool both_ways, bool batch_first) {
  const Layers layers{weights, has_biases, count, dropout, train, both_ways, batch_first};
  const auto states = hx.unbind(0);
  std::vector<Tensor> last;
  const auto out = layers(given, [&](const Tensor& input, at::TensorList own, int64_t index, bool reverse) {
    const auto bias = [&](size_t i) { return has_biases ? std::optional<Tensor>(own[i]) : std::nullopt; };
    auto steps = at::linear(input, own[0], bias(2)).unbind(0);
    auto state = states[size_t(index)];
    std::vector<Tensor> outputs(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      const size_t time = reverse ? steps.size() - 1 - i : i;
      const auto from_input = steps[time].unsafe_chunk(3, 1);
      const auto from_state = at::linear(state, own[1], bias(3)).unsafe_chunk(3, 1);
      const auto r = from_state[0].add_(from_input[0]).sigmoid_(), z = from_state[1].add_(from_input[1]).sigmoid_();
      const auto n = from_input[2].add(from_state[2].mul_(r)).tanh_();
      outputs[time] = state = (state - n).mul_(z).add_(n);
    }
    last.push_back(state);
    return at::stack(outputs, 0);
  });
  return {out, at::stack(last, 0)};
}

// Registered below and above autograd: their parts have derivatives.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  if (!timing::on()) {
    m.impl("lstm.input", TORCH_FN(lstm));
    m.impl("gru.input", TORCH_FN(gru));
  }
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) {
  if (!timing::on()) {
    m.impl("lstm.input", TORCH_FN(lstm));
    m.impl("gru.input", TORCH_FN(gru));
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace
}  // namespace sim
