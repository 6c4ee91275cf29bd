#include "cost.h"

#include "clock.h"

#include <unordered_map>

namespace sim::timing {

namespace {

using at::Tensor;
using c10::IValue;
using Values = c10::ArrayRef<IValue>;

double product(c10::IntArrayRef sizes) {
  double all = 1;
  for (const auto size : sizes) {
    all *= double(size);
  }
  return all;
}

// Multiplications and additions of a matrix product, whose argument at `left` is `[.., rows,
// inner]` and the next `[.., inner, columns]`, or a vector.
double product_flops(Values arguments, size_t left) {
  const auto& a = arguments[left].toTensor();
  const auto& b = arguments[left + 1].toTensor();
  return 2 * product(a.sizes()) * (b.dim() < 2 ? 1 : double(b.size(-1)));
}

// The weights once per output position; twice that for the two gradients.
double convolution_flops(Values arguments, Values results, bool backward) {
  const auto at = size_t(backward);
  const auto& map = backward ? arguments[0].toTensor() : results[0].toTensor();
  const auto& weight = arguments[at + 1].toTensor();
  const double once = 2 * product(map.sizes()) * product(weight.sizes()) / double(weight.size(0));
  return backward ? 2 * once : once;
}

enum class Kind { bytes, product, product_and_sum, convolution, convolution_backward };

Kind kind_of(const std::string& name) {
  static const auto* kinds = new std::unordered_map<std::string, Kind>{
      {"aten::mm", Kind::product},
      {"aten::bmm", Kind::product},
      {"aten::mv", Kind::product},
      {"aten::dot", Kind::product},
      {"aten::addmm", Kind::product_and_sum},
      {"aten::addmm_", Kind::product_and_sum},
      {"aten::_addmm_activation", Kind::product_and_sum},
      {"aten::baddbmm", Kind::product_and_sum},
      {"aten::baddbmm_", Kind::product_and_sum},
      {"aten::addbmm", Kind::product_and_sum},
      {"aten::addmv", Kind::product_and_sum},
      {"aten::addmv_", Kind::product_and_sum},
      {"aten::_slow_conv2d_forward", Kind::convolution},
      {"aten::slow_conv3d_forward", Kind::convolution},
      {"aten::slow_conv_dilated2d", Kind::convolution},
      {"aten::slow_conv_transpose2d", Kind::convolution},
      {"aten::convolution_overrideable", Kind::convolution},
      {"aten::_slow_conv2d_backward", Kind::convolution_backward},
      {"aten::convolution_backward_overrideable", Kind::convolution_backward},
  };
  const auto found = kinds->find(name);
  return found == kinds->end() ? Kind::bytes : found->second;
}

double flops_of(const Operator& op, Values arguments, Values results) {
  switch (kind_of(op.name)) {
    case Kind::product:
      return product_flops(arguments, 0);
    case Kind::product_and_sum:
      return product_flops(arguments, 1);
    case Kind::convolution:
      return convolution_flops(arguments, results, false);
    case Kind::convolution_backward:
      return convolution_flops(arguments, results, true);
    case Kind::bytes:
      break;
  }
  return 0;
}

}  // namespace

double bytes_in(const Tensor& tensor) {
  if (!tensor.defined()) {
    return 0;
  }
  double count = double(tensor.itemsize());
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    count *= tensor.stride(d) == 0 ? 1 : double(tensor.size(d));
  }
  return count;
}

double kernel_seconds(double flops, c10::ScalarType type, double bytes) {
  return model().kernel(flops, c10::elementSize(type), bytes);
}

double kernel_seconds(const Operator& op, Values arguments, Values results) {
  double bytes = 0;
  auto type = c10::ScalarType::Float;
  bool typed = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = op.arguments[i];
    see_tensors(arguments[i], [&](const Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_cuda()) {
        return;
      }
      if (!std::exchange(typed, true)) {
        type = tensor.scalar_type();
      }
      bytes += bytes_in(tensor) * ((argument.overwritten ? 0 : 1) + (argument.written ? 1 : 0));
    });
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (op.returned[i] < 0) {
      see_tensors(results[i], [&](const Tensor& tensor) { bytes += bytes_in(tensor); });
    }
  }
  return kernel_seconds(flops_of(op, arguments, results), type, bytes);
}

}  // namespace sim::timing
