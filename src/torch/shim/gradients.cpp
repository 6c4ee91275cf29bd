// Norms of lists of tensors, without a host sync per tensor.
//
// The norm of a tensor must depend neither on the rest of the list nor on the number of threads:
// then a total over all parameters is the same to the bit however they are distributed over stages.
// On the CPU that takes a loop of our own (libtorch's splits long tensors by threads, and adds
// float in float). On other devices the fused kernel reduces each tensor separately, provided that
// the whole list qualifies for it; so it gets lists of one type, dense.
#include "shim.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <map>
#include <vector>

namespace {

// The same numbers as a dense real tensor, in memory order if the tensor has no gaps.
at::Tensor dense(const at::Tensor& tensor, int64_t index) {
  TORCH_CHECK(tensor.defined(), "tensor ", index, " of the list is undefined");
  TORCH_CHECK(tensor.layout() == c10::kStrided, "tensor ", index, " of the list is ",
              tensor.layout(), ": only dense tensors have a norm here; make it dense first");
  auto real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  real = real.resolve_neg();
  return real.is_non_overlapping_and_dense() ? real : real.contiguous();
}

// Squares are added in double, where those of floats cannot overflow. Several
// sums side by side: one alone would wait for itself at each addition.
template <typename scalar_t>
double sum_of_squares(const scalar_t* data, int64_t count) {
  constexpr int64_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(data[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(data[i]);
    lanes[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const auto lane : lanes) {
    sum += lane;
  }
  return sum;
}

double cpu_norm(const at::Tensor& tensor) {
  double sum = 0;
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kBool, at::kHalf, at::kBFloat16, tensor.scalar_type(), "norm",
      [&] { sum = sum_of_squares(tensor.const_data_ptr<scalar_t>(), tensor.numel()); });
  return std::sqrt(sum);
}

}  // namespace

// 2-norms of dense float tensors on one device, as one tensor of doubles there, [count], without a
// host sync. On the CPU they have the bits of `gp_cpu_norms`.
GP_API int gp_norms_there(at::Tensor** tensors, int64_t count, at::Tensor** out) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    TORCH_CHECK(count > 0, "no tensors to take norms of");
    const auto options = tensors[0]->options().dtype(at::kDouble);
    if (tensors[0]->is_cpu()) {
      auto norms = at::empty({count}, options);
      auto* numbers = norms.mutable_data_ptr<double>();
      for (int64_t i = 0; i < count; ++i) {
        numbers[i] = cpu_norm(dense(*tensors[i], i));
      }
      *out = new at::Tensor(std::move(norms));
      return;
    }
    // An empty tensor would send the whole list down a slower path.
    std::vector<at::Tensor> list;
    std::vector<int64_t> places;
    std::vector<at::Tensor> norms(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      if (tensors[i]->numel() == 0) {
        norms[i] = at::zeros({}, options);
        continue;
      }
      places.push_back(i);
      list.push_back(dense(*tensors[i], i));
    }
    if (!list.empty()) {
      auto own = at::_foreach_norm(list, 2, at::kDouble);
      for (size_t i = 0; i < own.size(); ++i) {
        norms[places[i]] = std::move(own[i]);
      }
    }
    *out = new at::Tensor(at::stack(norms));
  });
}

// out[i] = 2-norm of tensors[i], on the CPU.
GP_API int gp_cpu_norms(at::Tensor** tensors, int64_t count, double* out) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = cpu_norm(dense(*tensors[i], i));
    }
  });
}

// The same for any one device: reads all results at once.
GP_API int gp_device_norms(at::Tensor** tensors, int64_t count, double* out) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    std::map<c10::ScalarType, std::vector<at::Tensor>> lists;
    std::map<c10::ScalarType, std::vector<int64_t>> places;
    for (int64_t i = 0; i < count; ++i) {
      auto tensor = dense(*tensors[i], i);
      out[i] = 0;
      if (tensor.numel() == 0) {
        continue;
      }
      if (!c10::isFloatingType(tensor.scalar_type())) {
        tensor = tensor.to(at::kDouble);
      }
      places[tensor.scalar_type()].push_back(i);
      lists[tensor.scalar_type()].push_back(std::move(tensor));
    }
    std::vector<at::Tensor> norms;
    std::vector<int64_t> order;
    for (auto& [type, list] : lists) {
      auto own = at::_foreach_norm(list, 2, at::kDouble);
      norms.insert(norms.end(), own.begin(), own.end());
      order.insert(order.end(), places[type].begin(), places[type].end());
    }
    if (norms.empty()) {
      return;
    }
    const auto read = at::stack(norms).cpu();
    const auto* numbers = read.const_data_ptr<double>();
    for (size_t i = 0; i < order.size(); ++i) {
      out[order[i]] = numbers[i];
    }
  });
}
