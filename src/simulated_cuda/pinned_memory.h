// Page-locked memory of the host.
#pragma once

#include "stream.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>

namespace sim {

at::HostAllocator* pinned_allocator();
// Whether the address is in page-locked memory, at its beginning or not.
bool is_pinned(const void* address);
// Notes that a stream uses a tensor's page-locked memory: what libtorch's copies do behind each.
void use_pinned(const at::Tensor& tensor, const Stream& stream);

}  // namespace sim
