// NCCL's point-to-point transfers between GPUs, looked up by name at first use: in the library that
// libtorch_cuda uses; nothing of it is needed to build this.
//
// The declarations are the C interface of NCCL 2.14 (nccl.h: results, `ncclUniqueId`,
// `ncclConfig_v21400`, data types). Later versions accept it: they read as many bytes of a
// configuration as its size field says, and use defaults for newer fields.
#include "shim.h"
#include "simulated.h"

#include <ATen/Context.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;
constexpr int kUint8 = 1;

// Selects another library than libtorch_cuda's.
constexpr auto kPath = "GPIPE_NCCL";
constexpr auto kLibrary = "libnccl.so.2";

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
static_assert(sizeof(UniqueId) == 128 && sizeof(Config) == 24, "not the structures of NCCL 2.14");

// The real type is opaque.
using Handle = void*;

// The library's functions.
struct Nccl {
  Result (*version)(int*);
  const char* (*error_string)(Result);
  const char* (*last_error)(Handle);
  Result (*unique_id)(UniqueId*);
  Result (*init)(Handle*, int, UniqueId, int, Config*);
  Result (*async_error)(Handle, Result*);
  Result (*abort)(Handle);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, size_t, int, int, Handle, void*);
  Result (*recv)(void*, size_t, int, int, Handle, void*);

  // `kInProgress` is none: who asks for the state later finds what became of it.
  void check(Result result, const char* what, Handle own = nullptr) const {
    if (result == kSuccess || result == kInProgress) {
      return;
    }
    const char* last = last_error(own);
    const char* more = last == nullptr || *last == 0 ? "" : ": ";
    TORCH_CHECK(false, "NCCL cannot ", what, ": ", error_string(result), more, last == nullptr ? "" : last);
  }
};

// Beside libtorch, where PyPI wheels put it.
std::string in_wheel() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &info) == 0) {
    return {};
  }
  std::error_code none;
  const auto own = std::filesystem::canonical(info.dli_fname, none);
  return own.parent_path().parent_path().parent_path() / "nvidia/nccl/lib" / kLibrary;
}

void* load() {
  if (const char* path = std::getenv(kPath); path != nullptr && *path != 0) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (gpipe::simulates_gpus()) {
    gpipe::load_simulated_cuda();
    const auto beside = std::filesystem::path(gpipe::simulated_cuda()).parent_path() / kLibrary;
    return dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (void* there = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    return there;
  }
  const auto wheel = in_wheel();
  std::error_code none;
  const bool beside = !wheel.empty() && std::filesystem::exists(wheel, none);
  return dlopen(beside ? wheel.c_str() : kLibrary, RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
void find(void* library, Function*& place, const char* name) {
  place = reinterpret_cast<Function*>(dlsym(library, name));
  TORCH_CHECK(place != nullptr, kLibrary, " has no function ", name, ": 2.14 is the first version that will do");
}

// Throws at each use where there is none.
const Nccl& nccl() {
  static const Nccl loaded = [] {
    void* library = load();
    const char* why = library == nullptr ? dlerror() : nullptr;
    TORCH_CHECK(library != nullptr, "NCCL cannot be loaded: ", why == nullptr ? kLibrary : why, ". PyTorch's CUDA wheels bring it (nvidia-nccl-cu13), and ", kPath,
                " names another one");
    Nccl own{};
    find(library, own.version, "ncclGetVersion");
    find(library, own.error_string, "ncclGetErrorString");
    find(library, own.last_error, "ncclGetLastError");
    find(library, own.unique_id, "ncclGetUniqueId");
    find(library, own.init, "ncclCommInitRankConfig");
    find(library, own.async_error, "ncclCommGetAsyncError");
    find(library, own.abort, "ncclCommAbort");
    find(library, own.group_start, "ncclGroupStart");
    find(library, own.group_end, "ncclGroupEnd");
    find(library, own.send, "ncclSend");
    find(library, own.recv, "ncclRecv");
    return own;
  }();
  return loaded;
}

// A communicator of two ranks. The library takes one call at a time on it, and returns from each
// before it is over; so the lock is held for a moment only, and an abort finds its turn.
struct Communicator {
  std::mutex mutex;
  // Held by the one that aborts: others wait until that is done.
  std::mutex ending;
  // Null once it is gone.
  Handle handle = nullptr;
  int rank = 0;
  int device = 0;

  Handle alive() const {
    TORCH_CHECK(handle != nullptr, "the communicator was aborted");
    return handle;
  }

  void abort() {
    std::lock_guard<std::mutex> alone(ending);
    Handle own = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex);
      std::swap(own, handle);
    }
    if (own != nullptr) {
      nccl().check(nccl().abort(own), "abort a communicator");
    }
  }
};

// Switches the calling thread's current device, and restores it.
struct OnDevice {
  explicit OnDevice(int device) : before(guard().exchangeDevice(cuda(device))) {}
  ~OnDevice() { guard().uncheckedSetDevice(before); }

  static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::kCUDA); }
  static c10::Device cuda(int device) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device)}; }

  c10::Device before;
};

void* native_stream(int device, int64_t id) {
  const c10::Stream stream(c10::Stream::UNSAFE, OnDevice::cuda(device), id);
  return OnDevice::guard().getStreamNativeHandle(stream);
}

// Runs all transfers as one operation, in this order.
template <typename Move>
void together(Communicator& own, int64_t count, Move&& move) {
  std::lock_guard<std::mutex> lock(own.mutex);
  OnDevice there(own.device);
  const auto handle = own.alive();
  const auto& library = nccl();
  library.check(library.group_start(), "begin a transfer");
  Result failed = kSuccess;
  for (int64_t i = 0; i < count && failed == kSuccess; ++i) {
    const auto result = move(library, i, handle);
    failed = result == kInProgress ? kSuccess : result;
  }
  const auto ended = library.group_end();
  library.check(failed, "begin a transfer", handle);
  library.check(ended, "begin a transfer", handle);
}

}  // namespace

// The library's version, as it counts: 22809 is 2.28.9.
GP_API int gp_nccl_version(int* out) {
  return gpipe::guarded([&] { nccl().check(nccl().version(out), "tell its version"); });
}

// A word of 128 bytes by which both ranks of a communicator find each other.
GP_API int gp_nccl_unique_id(uint8_t* out) {
  return gpipe::guarded([&] {
    UniqueId id{};
    nccl().check(nccl().unique_id(&id), "make a unique id");
    std::memcpy(out, id.bytes, sizeof(id.bytes));
  });
}

// Begins to connect this device, as rank 0 or 1, with the other rank.
GP_API int gp_nccl_connect(const uint8_t* word, int rank, int device, Communicator** out) {
  return gpipe::guarded([&] {
    const auto& library = nccl();
    OnDevice there(device);
    UniqueId id{};
    std::memcpy(id.bytes, word, sizeof(id.bytes));
    Config config;
    auto own = std::make_unique<Communicator>();
    own->rank = rank;
    own->device = device;
    const auto result = library.init(&own->handle, 2, id, rank, &config);
    if (result != kSuccess && result != kInProgress && own->handle != nullptr) {
      library.abort(own->handle);
    }
    library.check(result, "connect two GPUs");
    *out = own.release();
  });
}

// Whether the last call is over; fails if something failed, now or in the background.
GP_API int gp_nccl_is_ready(Communicator* own, int* out) {
  return gpipe::guarded([&] {
    std::lock_guard<std::mutex> lock(own->mutex);
    const auto& library = nccl();
    Result state = kSuccess;
    library.check(library.async_error(own->alive(), &state), "tell a communicator's state", own->handle);
    library.check(state, "reach the other GPU", own->handle);
    *out = state == kInProgress ? 0 : 1;
  });
}

// Puts the transfer of these contiguous tensors of bytes to the other rank at the end of a stream.
GP_API int gp_nccl_send(Communicator* own, const at::Tensor* const* tensors, int64_t count, int64_t stream) {
  return gpipe::guarded([&] {
    auto* const native = native_stream(own->device, stream);
    together(*own, count, [&](const Nccl& library, int64_t i, Handle handle) {
      const auto& bytes = *tensors[i];
      return library.send(bytes.const_data_ptr(), bytes.nbytes(), kUint8, 1 - own->rank, handle, native);
    });
  });
}

// The same for receiving from the other rank.
GP_API int gp_nccl_recv(Communicator* own, const at::Tensor* const* tensors, int64_t count, int64_t stream) {
  return gpipe::guarded([&] {
    auto* const native = native_stream(own->device, stream);
    together(*own, count, [&](const Nccl& library, int64_t i, Handle handle) {
      const auto& bytes = *tensors[i];
      return library.recv(bytes.mutable_data_ptr(), bytes.nbytes(), kUint8, 1 - own->rank, handle, native);
    });
  });
}

// Ends running work on both devices, and the communicator; may wait for the device.
GP_API int gp_nccl_abort(Communicator* own) {
  return gpipe::guarded([&] { own->abort(); });
}

// Frees the communicator; ends running work if it was not aborted.
GP_API void gp_nccl_free(Communicator* own) {
  gpipe::guarded([&] {
    std::unique_ptr<Communicator> freed(own);
    freed->abort();
  });
}

// A stream of high priority, out of libtorch's pool of these: those that compute are of another.
GP_API int gp_stream_new_high(int device, int64_t* id) {
  return gpipe::guarded([&] {
    *id = OnDevice::guard().getStreamFromGlobalPool(OnDevice::cuda(device), /*isHighPriority=*/true).id();
  });
}
