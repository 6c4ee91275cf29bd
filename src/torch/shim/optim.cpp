// Optimizer updates over whole lists of tensors, through libtorch's fused
// kernels (`aten::_fused_adam_`, `aten::_fused_adamw_`, `aten::_fused_sgd_`), and the few in-place
// operations on gradients that belong to an update.
#include "shim.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <optional>
#include <vector>

namespace {

std::vector<at::Tensor> list(at::Tensor** tensors, int64_t count) {
  std::vector<at::Tensor> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(*tensors[i]);
  }
  return out;
}

std::optional<at::Tensor> if_any(const at::Tensor* tensor) {
  return tensor == nullptr ? std::nullopt : std::optional<at::Tensor>(*tensor);
}

}  // namespace

// If `found` (null: none) is 1 on the tensors' device, updates change nothing.
//
// `decoupled`: the weight decay is not part of the gradient (AdamW).
GP_API int gp_fused_adam(at::Tensor** parameters, at::Tensor** grads, at::Tensor** means,
                         at::Tensor** squares, at::Tensor** steps, int64_t count, double lr,
                         double beta1, double beta2, double weight_decay, double eps,
                         int decoupled, const at::Tensor* found) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    // The kernel reads the number of this step, the first being one.
    auto numbers = list(steps, count);
    at::_foreach_add_(numbers, 1);
    auto update = [&](auto kernel) {
      kernel(list(parameters, count), list(grads, count), list(means, count),
             list(squares, count), /*max_exp_avg_sqs=*/at::TensorList(), numbers, lr, beta1, beta2,
             weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false, std::nullopt, if_any(found));
    };
    try {
      if (decoupled != 0) {
        update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
      } else {
        update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
      }
    } catch (...) {
      // Undo the count, so that the update can be retried.
      at::_foreach_sub_(numbers, 1);
      throw;
    }
    if (found != nullptr) {
      // A skipped update does not count.
      at::_foreach_sub_(numbers, std::vector<at::Tensor>(numbers.size(), *found));
    }
  });
}

// `buffers` is empty (null) without momentum; `first` says that they hold nothing yet.
GP_API int gp_fused_sgd(at::Tensor** parameters, at::Tensor** grads, at::Tensor** buffers,
                        int64_t count, double lr, double momentum, double dampening,
                        double weight_decay, int nesterov, int first, const at::Tensor* found) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    auto momenta = buffers == nullptr ? std::vector<at::Tensor>{} : list(buffers, count);
    at::_fused_sgd_(list(parameters, count), list(grads, count), momenta, weight_decay, momentum,
                    lr, dampening, nesterov != 0, /*maximize=*/false, first != 0,
                    /*grad_scale=*/std::nullopt, if_any(found));
  });
}

// tensors[i] *= factor
GP_API int gp_scale(at::Tensor** tensors, int64_t count, double factor) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_mul_(list(tensors, count), factor);
  });
}

// tensors[i] *= factor, a number on their device.
GP_API int gp_scale_by(at::Tensor** tensors, int64_t count, const at::Tensor* factor) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_mul_(list(tensors, count), *factor);
  });
}

// tensors[i] += others[i]
GP_API int gp_add(at::Tensor** tensors, at::Tensor** others, int64_t count) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_add_(list(tensors, count), list(others, count), 1.0);
  });
}
