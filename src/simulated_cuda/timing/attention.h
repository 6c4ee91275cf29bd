// Which attention CUDA would compute.
#pragma once

#include <ATen/core/Tensor.h>

namespace sim::timing {

// As `_fused_sdp_choice` gives it. `plain`: nothing is masked or dropped, and there are as many heads of
// keys as of queries.
int64_t attention_kernel(const at::Tensor& query, bool plain);

}  // namespace sim::timing
