// The attention kernel that CUDA would choose.
#pragma once

#include <ATen/core/Tensor.h>

namespace sim::timing {

// As returned by `_fused_sdp_choice`. `plain`: no mask, no dropout, and as many heads of keys as of
// queries.
int64_t attention_kernel(const at::Tensor& query, bool plain);

}  // namespace sim::timing
