#include "cpu_view.h"

#include "../address_space.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

// One intra-op thread per stream; reading the number first makes it the thread's own.
void begin_stream_thread() {
  at::get_num_threads();
  at::set_num_threads(1);
}

namespace sim {

namespace {

// Most pieces by which a tensor with gaps is noted.
constexpr int64_t kPieces = 64;

// The pieces of a tensor, `length` bytes each: by dimension, their count and distance in bytes.
std::vector<std::pair<int64_t, int64_t>> gaps(const at::Tensor& tensor, int64_t& length) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != 0) {
      all.emplace_back(tensor.size(d), tensor.stride(d) * int64_t(tensor.itemsize()));
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  size_t dense = 0;
  for (; dense < all.size() && all[dense].second == length; ++dense) {
    length *= all[dense].first;
  }
  all.erase(all.begin(), all.begin() + std::ptrdiff_t(dense));
  return all;
}

}  // namespace

at::Tensor cpu_view(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto* data = bytes_of(storage.data());
  c10::Storage seen(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    at::DataPtr(data, c10::Device(c10::kCPU)), /*allocator=*/nullptr,
                    /*resizable=*/false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(seen), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return view;
}

void note_access(std::vector<Access>& accesses, const at::Tensor& tensor, bool write) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return;
  }
  const auto* from = static_cast<const char*>(tensor.const_data_ptr());
  if (!tensor.is_cuda() && !is_page_locked(from)) {
    return;
  }
  const auto size = int64_t(tensor.itemsize());
  int64_t length = size;
  auto rest = gaps(tensor, length);
  int64_t pieces = 1;
  int64_t last = 0;
  bool exact = true;
  for (const auto& [count, step] : rest) {
    exact = exact && step >= length;
    pieces *= count;
    last += (count - 1) * step;
  }
  if (!exact || pieces > kPieces) {
    accesses.push_back({from, from + last + length, write, false});
    return;
  }
  for (int64_t piece = 0; piece < pieces; ++piece) {
    int64_t at = 0;
    int64_t left = piece;
    for (const auto& [count, step] : rest) {
      at += left % count * step;
      left /= count;
    }
    accesses.push_back({from + at, from + at + length, write});
  }
}

}  // namespace sim
