// Memory of batches, reused once no handle to the batch is left.
//
// A batch of some megabytes is mapped by the C library, zeroed by the kernel page by page, and
// unmapped when dropped, which takes longer than filling it. So a loader has a pool. Its blocks
// come from libtorch's allocator; a tensor over a block returns it when its storage is freed, which
// views and other holders of a part delay.
//
// A loader closes its pool. Tensors may live on; their blocks are then freed like any others.
#include "shim.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace {

struct Free {
  size_t bytes;
  c10::DataPtr data;
};

struct Pool {
  std::mutex mutex;
  std::vector<Free> free;
  // Blocks in use, and the most ever in use at a time: that many exist at most, since blocks of
  // sizes no longer needed make room for others.
  size_t out = 0;
  size_t most = 0;
  bool closed = false;

  // The block that was used last and is large enough, but not by more than a quarter.
  Free take(size_t bytes) {
    // Freed after the lock is released.
    std::vector<Free> oldest;
    {
      std::lock_guard<std::mutex> lock(mutex);
      most = std::max(most, ++out);
      const auto fits = [&](const Free& one) {
        return one.bytes >= bytes && one.bytes - bytes <= bytes / 4;
      };
      const auto found = std::find_if(free.rbegin(), free.rend(), fits);
      if (found != free.rend()) {
        auto block = std::move(*found);
        free.erase(std::next(found).base());
        return block;
      }
      if (free.size() + out > most) {
        const auto end = free.begin() + static_cast<std::ptrdiff_t>(free.size() + out - most);
        std::move(free.begin(), end, std::back_inserter(oldest));
        free.erase(free.begin(), end);
      }
    }
    oldest.clear();
    try {
      return {bytes, c10::GetCPUAllocator()->allocate(bytes)};
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      --out;
      throw;
    }
  }

  void give_back(Free block) {
    // Freed after the lock is released.
    Free last{0, {}};
    std::lock_guard<std::mutex> lock(mutex);
    --out;
    if (closed) {
      std::swap(last, block);
      return;
    }
    free.push_back(std::move(block));
  }

  void close() {
    std::vector<Free> last;
    std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    last.swap(free);
  }
};

// Context of a storage over a block.
struct Out {
  std::shared_ptr<Pool> pool;
  Free block;
};

void end(void* context) {
  std::unique_ptr<Out> out(static_cast<Out*>(context));
  gpipe::guarded([&] { out->pool->give_back(std::move(out->block)); });
}

}  // namespace

GP_API int gp_pool_new(std::shared_ptr<Pool>** out) {
  return gpipe::guarded([&] { *out = new std::shared_ptr<Pool>(std::make_shared<Pool>()); });
}

GP_API void gp_pool_close(std::shared_ptr<Pool>* pool) {
  gpipe::guarded([&] { (*pool)->close(); });
  delete pool;
}

// A dense tensor of the CPU's with whatever is in its memory.
GP_API int gp_pool_empty(const std::shared_ptr<Pool>* pool, int kind, const int64_t* sizes,
                         int64_t dimensions, at::Tensor** out) {
  return gpipe::guarded([&] {
    const auto type = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(kind));
    const c10::IntArrayRef shape(sizes, static_cast<size_t>(dimensions));
    size_t bytes = type.itemsize();
    for (const auto side : shape) {
      TORCH_CHECK(side >= 0 && !__builtin_mul_overflow(bytes, static_cast<size_t>(side), &bytes),
                  "a batch of ", shape, " is too large for any memory");
    }
    auto block = (*pool)->take(bytes);
    auto* data = block.data.get();
    auto held = std::make_unique<Out>(Out{*pool, std::move(block)});
    c10::DataPtr pointer(data, held.get(), &end, c10::Device(c10::kCPU));
    held.release();
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer),
                         c10::GetCPUAllocator(), /*resizable=*/true);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
    *out = new at::Tensor(std::move(tensor));
  });
}

// Copies a tensor to a row of a dense batch. `done` tells whether it fits: of the rows' shape and
// kind, on the CPU, dense, without a graph. Otherwise nothing is copied.
GP_API int gp_put_row(const at::Tensor* batch, int64_t row, const at::Tensor* item, bool* done) {
  return gpipe::guarded([&] {
    *done = item->defined() && item->device().is_cpu() && item->layout() == c10::kStrided &&
            !item->requires_grad() && !item->is_neg() && !item->is_conj() &&
            item->scalar_type() == batch->scalar_type() &&
            item->sizes() == batch->sizes().slice(1);
    if (!*done) {
      return;
    }
    TORCH_CHECK(row >= 0 && row < batch->size(0), "a batch has no row ", row);
    const auto dense = item->is_contiguous() ? *item : item->contiguous();
    const auto bytes = dense.nbytes();
    if (bytes > 0) {
      auto* first = static_cast<char*>(batch->mutable_data_ptr());
      std::memcpy(first + static_cast<size_t>(row) * bytes, dense.const_data_ptr(), bytes);
    }
  });
}
