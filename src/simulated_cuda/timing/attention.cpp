// CUDA's FlashAttention: only its time.
#include "attention.h"

#include "clock.h"
#include "cost.h"

#include <ATen/ATen.h>
#include <torch/library.h>

namespace sim::timing {

namespace {

using at::Tensor;
using Out = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// sdp::SDPBackend: CUDA's choice, if it is one of these two.
constexpr int64_t kMath = 0, kFlash = 1;
constexpr int64_t kWidestHead = 256;
// A backward recomputes the weights, and does four more products.
constexpr double kBackward = 2.5;

void submit(const char* what, const Tensor& query, const Tensor& key, bool causal, double times, double bytes) {
  const double pairs = double(query.size(2)) * double(key.size(2)) * (causal ? 0.5 : 1.0);
  const double flops = 4 * double(query.size(0) * query.size(1) * query.size(3)) * pairs * times;
  Entry entry;
  entry.what = what;
  entry.seconds = kernel_seconds(flops, query.scalar_type(), bytes);
  current_stream(query.device().index()).submit(std::move(entry));
}

// `[batch, heads, time, head]`, with time before heads in memory.
Tensor attended(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

Out forward(const Tensor& query, const Tensor& key, const Tensor& value, double, bool causal, bool,
            std::optional<double>) {
  c10::DeviceGuard guard(query.device());
  const auto out = attended(query);
  const auto sums = at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat));
  const auto bytes = 2 * bytes_in(query) + bytes_in(key) + bytes_in(value) + bytes_in(sums);
  submit("flash attention", query, key, causal, 1, bytes);
  const auto state = at::empty({2}, query.options().dtype(at::kUInt64));
  return {out, sums, {}, {}, query.sym_size(2), key.sym_size(2), state, at::empty({}, state.options()), {}};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& sums,
                                            const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double,
                                            bool causal, const Tensor&, const Tensor&, std::optional<double>) {
  c10::DeviceGuard guard(query.device());
  const auto bytes = bytes_in(grad) + bytes_in(out) + bytes_in(sums) +
      2 * (bytes_in(query) + bytes_in(key) + bytes_in(value));
  submit("flash attention backward", query, key, causal, kBackward, bytes);
  return {attended(query), attended(key), attended(value)};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  if (on()) {
    m.impl("_scaled_dot_product_flash_attention", TORCH_FN(forward));
    m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(backward));
  }
}

}  // namespace

int64_t attention_kernel(const Tensor& query, bool plain) {
  const bool takes = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  return on() && plain && takes && query.dim() == 4 && query.size(3) <= kWidestHead ? kFlash : kMath;
}

}  // namespace sim::timing
