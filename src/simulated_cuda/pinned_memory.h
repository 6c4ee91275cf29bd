// Page-locked memory of the host.
#pragma once

#include "stream.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>

namespace sim {

at::HostAllocator* pinned_allocator();
// Whether the address lies anywhere in page-locked memory.
bool is_pinned(const void* address);
// Records that a stream uses a tensor's page-locked memory, as libtorch does after each copy.
void use_pinned(const at::Tensor& tensor, const Stream& stream);

}  // namespace sim
