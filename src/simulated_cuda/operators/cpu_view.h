// Device memory as CPU tensors, for the CPU's kernels.
#pragma once

#include "../stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace sim {

// A CPU tensor over the same bytes. It keeps no memory alive, so that freeing too early shows.
at::Tensor cpu_view(const at::Tensor& tensor);

// Adds the memory that an entry touches by reading or writing a tensor, on a device or page-locked.
void note_access(std::vector<Access>& accesses, const at::Tensor& tensor, bool write);

// Scope of a kernel: none of the calling thread's modes, and no autograd.
struct KernelScope {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  at::AutoGradMode grad{false};
};

}  // namespace sim
