// The device's memory as tensors of the CPU, for its kernels.
#pragma once

#include "../stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace sim {

// A CPU tensor of the same bytes. It keeps no memory: what is freed too early shows.
at::Tensor cpu_view(const at::Tensor& tensor);

// What an entry that reads or writes a tensor touches, in memory of a device or page-locked.
void note_access(std::vector<Access>& accesses, const at::Tensor& tensor, bool write);

// None of the modes of the calling thread, and no autograd: what a kernel runs under.
struct KernelScope {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  at::AutoGradMode grad{false};
};

}  // namespace sim
