#include "results.h"

#include "../operators/cpu_view.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>

#include <functional>
#include <unordered_map>

namespace sim::timing {

namespace {

using at::Tensor;
using c10::IValue;
using Values = c10::ArrayRef<IValue>;
using Shapes = std::vector<std::vector<ResultShape>>;

// Most bytes of arguments for which the CPU's kernel is run.
constexpr size_t kAsked = size_t(1) << 28;

ResultShape shape(c10::ScalarType type, std::vector<int64_t> sizes) {
  ResultShape out{true, std::move(sizes), {}, type};
  out.strides.resize(out.sizes.size());
  int64_t stride = 1;
  for (size_t d = out.sizes.size(); d-- > 0;) {
    out.strides[d] = stride;
    stride *= std::max<int64_t>(out.sizes[d], 1);
  }
  return out;
}

ResultShape like(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return {};
  }
  return shape(value.toTensor().scalar_type(), value.toTensor().sizes().vec());
}

ResultShape of(const Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
}

bool wanted(const IValue& mask, size_t at) { return mask.toListRef()[at].toBool(); }

// The wanted gradients of an input, a weight and a bias.
Shapes gradients(const IValue& input, const IValue& weight, const IValue& bias, const IValue& mask) {
  const auto one = [&](size_t at, const IValue& value) {
    return std::vector<ResultShape>{wanted(mask, at) ? like(value) : ResultShape{}};
  };
  return {one(0, input), one(1, weight), one(2, bias)};
}

// A statistic per normalized row, in at least single precision.
ResultShape statistic(const Tensor& input, size_t normalized) {
  auto sizes = input.sizes().vec();
  std::fill(sizes.end() - std::ptrdiff_t(normalized), sizes.end(), 1);
  return shape(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, std::move(sizes));
}

std::vector<int64_t> channels(const Tensor& input) { return {input.size(1)}; }

using Rule = std::function<Shapes(Values)>;

Shapes batch_norm(Values given) {
  const auto& input = given[0].toTensor();
  return {{of(input)}, {shape(at::kFloat, channels(input))}, {shape(at::kFloat, channels(input))}};
}

Shapes batch_norm_backward(Values given) {
  const auto bias = shape(at::kFloat, channels(given[1].toTensor()));
  const auto& mask = given[9];
  return {{wanted(mask, 0) ? of(given[1].toTensor()) : ResultShape{}},
          {wanted(mask, 1) ? bias : ResultShape{}},
          {wanted(mask, 2) ? bias : ResultShape{}}};
}

// Operators without a kernel for the meta device.
const std::unordered_map<std::string, Rule>& rules() {
  static const auto* all = new std::unordered_map<std::string, Rule>{
      {"aten::native_layer_norm",
       [](Values given) -> Shapes {
         const auto& input = given[0].toTensor();
         const auto row = statistic(input, given[1].toListRef().size());
         return {{like(given[0])}, {row}, {row}};
       }},
      {"aten::native_layer_norm_backward",
       [](Values given) { return gradients(given[1], given[5], given[6], given[7]); }},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::index_select",
       [](Values given) -> Shapes {
         const auto& input = given[0].toTensor();
         auto sizes = input.sizes().vec();
         if (!sizes.empty()) {
           const int64_t d = given[1].toInt();
           sizes.at(size_t(d < 0 ? d + input.dim() : d)) = given[2].toTensor().numel();
         }
         return {{shape(input.scalar_type(), std::move(sizes))}};
       }},
      {"aten::embedding_dense_backward",
       [](Values given) -> Shapes {
         const auto& grad = given[0].toTensor();
         return {{shape(grad.scalar_type(), {given[2].toInt(), grad.size(-1)})}};
       }},
      {"aten::_slow_conv2d_forward",
       [](Values given) -> Shapes {
         const auto &input = given[0].toTensor(), &weight = given[1].toTensor();
         const auto kernel = given[2].toIntVector(), stride = given[4].toIntVector(), pad = given[5].toIntVector();
         const auto side = [&](size_t d) {
           return (input.size(int64_t(d) + 2) + 2 * pad[d] - kernel[d]) / stride[d] + 1;
         };
         return {{shape(input.scalar_type(), {input.size(0), weight.size(0), side(0), side(1)})}};
       }},
      {"aten::_slow_conv2d_backward",
       [](Values given) -> Shapes {
         const auto &grad = given[0], &input = given[1], &weight = given[2];
         auto all = gradients(input, weight, weight, given[6]);
         if (all[2][0].defined) {
           all[2][0] = shape(grad.toTensor().scalar_type(), channels(grad.toTensor()));
         }
         return all;
       }},
  };
  return *all;
}

Tensor without_memory(const Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Runs libtorch's own shape functions; empty if there is none for the operator.
std::optional<Stack> ask_meta(const Operator& op, Values given) {
  KernelScope scope;
  Stack values;
  for (const auto& value : given) {
    values.push_back(value.isDevice() ? IValue(c10::Device(c10::kMeta)) : each_tensor(value, without_memory));
  }
  try {
    op.handle.callBoxed(values);
  } catch (const c10::NotImplementedError&) {
    return {};
  }
  return values;
}

Stack ask_cpu(const Operator& op, Values given) {
  size_t bytes = 0;
  Stack values;
  for (const auto& value : given) {
    see_tensors(value, [&](const Tensor& tensor) { bytes += tensor.defined() ? tensor.nbytes() : 0; });
  }
  TORCH_CHECK(bytes <= kAsked, "simulated GPUs that keep time do not know the sizes of the results of ",
              op.full_name, " for tensors of ", bytes, " bytes");
  KernelScope scope;
  for (const auto& value : given) {
    values.push_back(value.isDevice() ? IValue(c10::Device(c10::kCPU)) : each_tensor(value, [](const Tensor& tensor) {
      return tensor.defined() && tensor.is_cuda() ? of_zeros(tensor) : tensor;
    }));
  }
  return run_on_zeros(op, values);
}

}  // namespace

Results results_of(const Operator& op, Values given) {
  Results out;
  out.tensors.resize(op.returned.size());
  out.values.resize(op.returned.size());
  if (op.name == "aten::equal") {
    out.values[0] = true;
    return out;
  }
  if (const auto rule = rules().find(op.name); rule != rules().end() && op.makes_tensors) {
    out.tensors = rule->second(given);
    return out;
  }
  std::optional<Stack> results;
  if (op.makes_tensors && !op.waits) {
    results = ask_meta(op, given);
  }
  if (!results && (op.makes_tensors || op.waits)) {
    results = ask_cpu(op, given);
  }
  for (size_t i = 0; i < op.returned.size(); ++i) {
    if (op.returned[i] >= 0) {
      continue;
    }
    const auto& value = results->at(i);
    if (value.isTensor() || value.isTensorList()) {
      see_tensors(value, [&](const Tensor& tensor) { out.tensors[i].push_back(of(tensor)); });
    } else {
      out.values[i] = value;
    }
  }
  return out;
}

}  // namespace sim::timing
