#include "differences.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace sim {

namespace {

bool is_softmax(const Operator& op) { return op.name == "aten::_softmax" || op.name == "aten::_log_softmax"; }

bool is_softmax_backward(const Operator& op) {
  return op.name == "aten::_softmax_backward_data" || op.name == "aten::_log_softmax_backward_data";
}

bool resizes_its_result(const Operator& op) {
  return op.name == "aten::mse_loss" || op.name == "aten::smooth_l1_loss" || op.name == "aten::huber_loss";
}

constexpr size_t kTrainOfLayer = 15;

bool has_out(const Operator& op) { return op.arguments.back().out; }

c10::OperatorHandle plain_overload(const Operator& op) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.name.c_str(), "");
}

// Runs the overload without `out` on the first values, and copies its result.
void copy_plain_result(const Operator& op, Stack& values, at::ScalarType type) {
  const auto into = has_out(op) ? values.back().toTensor() : at::Tensor();
  if (has_out(op)) {
    values.pop_back();
  }
  plain_overload(op).callBoxed(&values);
  const auto result = values[0].toTensor();
  values[0] = into.defined() ? into.copy_(result) : result.to(type);
}

bool is_root_of_doubles(const Operator& op, const Stack& values) {
  const bool is_root = op.name == "aten::sqrt" || op.name == "aten::sqrt_";
  return is_root && values[0].toTensor().is_cpu() && values[0].toTensor().scalar_type() == at::kDouble;
}

// CUDA rounds correctly; MKL's square root, which libtorch calls here, is wrong in the last bit
// once in fifty.
void take_roots(const Operator& op, Stack& values) {
  const auto of = values[0].toTensor();
  const auto roots = of.clone(at::MemoryFormat::Contiguous);
  auto* begin = roots.data_ptr<double>();
  std::transform(begin, begin + roots.numel(), begin, [](double number) { return std::sqrt(number); });
  at::Tensor result = roots;
  if (has_out(op)) {
    result = values.back().toTensor().copy_(roots);
  } else if (op.name == "aten::sqrt_") {
    result = of.copy_(roots);
  }
  values = {result};
}

}  // namespace

void call_cpu(const Operator& op, Stack& values) {
  // It depends on the thread's gradient mode, with other kernels for inference. `train` tells the
  // mode at the call (recurrent.cpp).
  const at::AutoGradMode trains(op.name == "aten::mkldnn_rnn_layer" && values[kTrainOfLayer].toBool());
  // `half_to_float`: the CPU takes the input in f32.
  if (is_softmax(op) && values[2].toBool()) {
    values[0] = values[0].toTensor().to(at::kFloat);
    values[2] = false;
  }
  if (is_softmax_backward(op)) {
    const auto wide = values[0].toTensor().scalar_type();
    const auto type = values[3].toScalarType();
    if (wide != type) {
      values[3] = static_cast<int64_t>(wide);
      copy_plain_result(op, values, type);
      return;
    }
  }
  // The CPU first resizes the result to the size without reduction.
  if (resizes_its_result(op) && has_out(op)) {
    copy_plain_result(op, values, values[0].toTensor().scalar_type());
    return;
  }
  if (is_root_of_doubles(op, values)) {
    take_roots(op, values);
    return;
  }
  op.handle.callBoxed(&values);
}

}  // namespace sim
