// Tensors saved by autograd in a forward, kept in a *pool* from which they can be moved to host
// memory and back before the backward needs them.
//
// libtorch asks the engine for hooks whenever it saves a tensor. The engine here returns hooks
// while the calling thread has a pool, and otherwise acts as libtorch's own. A hook keeps a small
// tensor, and one that must stay (a parameter, for example), itself. It splits others into memory
// and a view of it: memory shared by several saved tensors is one entry of the pool, moved once, as
// a flat row of bytes, so that the views keep their strides and offsets.
//
// The hooks own the entries. A node that has run releases its saved tensors; the last hook frees
// the entry's memory, wherever it is.
#include "shim.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

// Memory of saved tensors, as bytes.
struct SavedMemory {
  // On the stage's device; undefined while it is offloaded.
  at::Tensor on_device;
  // On the host.
  at::Tensor on_host;
  // Whether the memory was allocated before the forward.
  bool foreign = false;
};

struct SavedTensorPool {
  c10::DeviceType device;
  size_t least;
  std::unordered_set<const c10::StorageImpl*> stays;
  std::unordered_set<const c10::StorageImpl*> foreign;
  std::vector<std::weak_ptr<SavedMemory>> entries;

  // Memory as it was at one version. Somebody else's memory gets the address of a
  // storage only after the last weak handle to it is gone.
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::weak_ptr<SavedMemory> entry;
  };
  std::map<std::pair<const c10::StorageImpl*, uint32_t>, Known> known;

  bool moves(const at::Tensor& tensor) const {
    if (tensor.layout() != c10::kStrided || tensor.is_nested() || !tensor.has_storage() ||
        tensor.is_conj() || tensor.is_neg() || tensor.device().type() != device) {
      return false;
    }
    const auto& storage = tensor.storage();
    return storage.nbytes() >= least && stays.count(storage.unsafeGetStorageImpl()) == 0;
  }

  std::shared_ptr<SavedMemory> entry_of(const at::Tensor& tensor, uint32_t version) {
    const auto& storage = tensor.storage();
    const auto* address = storage.unsafeGetStorageImpl();
    auto found = known.find({address, version});
    if (found != known.end()) {
      if (auto entry = found->second.entry.lock()) {
        return entry;
      }
    }
    auto entry = std::make_shared<SavedMemory>();
    const auto bytes = static_cast<int64_t>(storage.nbytes());
    entry->on_device = at::empty({0}, tensor.options().dtype(c10::kByte));
    entry->on_device.set_(storage, 0, {bytes}, {1});
    entry->foreign = foreign.count(address) > 0;
    known.insert_or_assign({address, version},
                           Known{c10::weak_intrusive_ptr<c10::StorageImpl>(
                                     storage.getWeakStorageImpl()),
                                 entry});
    entries.push_back(entry);
    return entry;
  }
};

// The pool for tensors that the calling thread saves.
thread_local SavedTensorPool* current = nullptr;

struct Hook : public torch::autograd::SavedVariableHooks {
  explicit Hook(SavedTensorPool* pool) : pool(pool) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    version = torch::autograd::impl::version_counter(tensor);
    expected = version->current_version();
    if (pool->moves(tensor)) {
      entry = pool->entry_of(tensor, expected);
    } else {
      // Not the tensor itself: its node may be the one that saves it.
      kept = tensor.tensor_data();
    }
    pool = nullptr;
    sizes = tensor.sizes().vec();
    if (entry != nullptr) {
      strides = tensor.strides().vec();
      offset = tensor.storage_offset();
      options = tensor.options();
    }
  }

  // libtorch leaves it to hooks to notice that what was saved has changed since.
  void check_version(c10::ScalarType type) const {
    const auto now = version->current_version();
    TORCH_CHECK(now == expected,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: [",
                type, " ", at::IntArrayRef(sizes), "] is at version ", now,
                "; expected version ", expected, " instead.");
  }

  at::Tensor call_unpack_hook() override {
    if (entry == nullptr) {
      check_version(kept.scalar_type());
      return kept;
    }
    check_version(c10::typeMetaToScalarType(options.dtype()));
    TORCH_CHECK(entry->on_device.defined(),
                "what was saved for the backward is still in the host's memory");
    at::NoGradGuard no_grad;
    auto view = at::empty({0}, options);
    view.set_(entry->on_device.storage(), offset, sizes, strides);
    return view;
  }

  SavedTensorPool* pool;
  at::Tensor kept;
  std::shared_ptr<SavedMemory> entry;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  at::TensorOptions options;
  std::optional<c10::VariableVersion> version;
  uint32_t expected = 0;
};

// libtorch's own engine, but for the hooks.
struct Engine : public torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (current == nullptr) {
      return get_base_engine().get_default_saved_variable_hooks();
    }
    return std::make_unique<Hook>(current);
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return get_base_engine().execute_with_graph_task(graph_task, std::move(graph_root),
                                                     std::move(input_buffer));
  }
};

// Leaked on purpose, as everything that threads may still use at exit.
torch::autograd::Engine& engine() {
  static auto* engine = new Engine();
  return *engine;
}

// The entry with this number, null once it is no longer needed.
std::shared_ptr<SavedMemory> entry_at(SavedTensorPool* pool, int64_t number) {
  return pool->entries.at(static_cast<size_t>(number)).lock();
}

}  // namespace

// For a stage that computes on a CUDA device, or on the CPU; memory of fewer than `least`
// bytes stays where it is.
GP_API int gp_saved_pool_new(int cuda, int64_t least, SavedTensorPool** out) {
  return gpipe::guarded([&] {
    static const bool installed = [] {
      torch::autograd::set_default_engine_stub(engine);
      return true;
    }();
    (void)installed;
    auto pool = std::make_unique<SavedTensorPool>();
    pool->device = cuda != 0 ? c10::kCUDA : c10::kCPU;
    pool->least = static_cast<size_t>(least);
    *out = pool.release();
  });
}

GP_API void gp_saved_pool_free(SavedTensorPool* pool) {
  gpipe::guarded([&] { delete pool; });
}

// Keeps the tensor's memory on the device.
GP_API int gp_saved_pool_keep_on_device(SavedTensorPool* pool, const at::Tensor* tensor) {
  return gpipe::guarded([&] {
    if (tensor->defined() && tensor->has_storage()) {
      pool->stays.insert(tensor->storage().unsafeGetStorageImpl());
    }
  });
}

// Marks the tensor's memory as foreign: allocated before the forward.
GP_API int gp_saved_pool_mark_foreign(SavedTensorPool* pool, const at::Tensor* tensor) {
  return gpipe::guarded([&] {
    if (tensor->defined() && tensor->has_storage()) {
      pool->foreign.insert(tensor->storage().unsafeGetStorageImpl());
    }
  });
}

// Puts tensors that the calling thread saves from now on into the pool (null: none); returns the
// previous pool. A pool must be left before it is freed.
GP_API SavedTensorPool* gp_saved_pool_enter(SavedTensorPool* pool) { return std::exchange(current, pool); }

GP_API int64_t gp_saved_pool_len(const SavedTensorPool* pool) {
  return static_cast<int64_t>(pool->entries.size());
}

// An entry's memory as bytes if it is on the device; null if not, or if no longer needed.
GP_API int gp_saved_pool_on_device(SavedTensorPool* pool, int64_t number, at::Tensor** out, int* foreign) {
  return gpipe::guarded([&] {
    auto entry = entry_at(pool, number);
    const bool there = entry != nullptr && entry->on_device.defined();
    *foreign = there && entry->foreign ? 1 : 0;
    *out = there ? new at::Tensor(entry->on_device) : nullptr;
  });
}

// The same if it is on the host.
GP_API int gp_saved_pool_on_host(SavedTensorPool* pool, int64_t number, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto entry = entry_at(pool, number);
    const bool there = entry != nullptr && entry->on_host.defined();
    *out = there ? new at::Tensor(entry->on_host) : nullptr;
  });
}

// Replaces the entry's memory by this copy on the host.
GP_API int gp_saved_pool_set_on_host(SavedTensorPool* pool, int64_t number, const at::Tensor* copy) {
  return gpipe::guarded([&] {
    if (auto entry = entry_at(pool, number)) {
      entry->on_host = *copy;
      entry->on_device.reset();
    }
  });
}

// Replaces the entry's memory by this copy on the device.
GP_API int gp_saved_pool_set_on_device(SavedTensorPool* pool, int64_t number, const at::Tensor* copy) {
  return gpipe::guarded([&] {
    if (auto entry = entry_at(pool, number)) {
      entry->on_device = *copy;
      entry->on_host.reset();
    }
  });
}
