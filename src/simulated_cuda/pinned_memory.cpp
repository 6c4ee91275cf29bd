// libtorch's caching allocator of page-locked memory, over streams and points of simulated devices,
// as CUDACachingHostAllocatorImpl is over CUDA's.
#include "pinned_memory.h"

#include "address_space.h"
#include "capture.h"
#include "checks.h"
#include "errors.h"
#include "faults.h"
#include "settings.h"

#include <cstdlib>
#include <cstring>
#include <map>

namespace sim {

namespace {

Stream& of(c10::Stream stream) { return sim::stream(stream.device_index(), stream.id()); }

// A point, and the device that it belongs to.
struct Event {
  int device;
  std::shared_ptr<Point> point;
};

// Memory from cudaHostAlloc by address, whether in use or cached.
struct Locked {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;

  static Locked& get() {
    static auto* all = new Locked();
    return *all;
  }
};

// Bytes in use.
std::atomic<size_t> handed_out{0};

struct PinnedImpl final
    : at::CachingHostAllocatorImpl<c10::Stream, Event, at::HostBlock<c10::Stream>> {
  // Memory handed out contains nothing of its earlier content.
  std::pair<void*, void*> allocate(size_t size) override {
    if (size > 0 && faults::hits(faults::Kind::page_locked, current_device())) {
      throw_cuda_error(Error::out_of_memory);
    }
    const auto given = CachingHostAllocatorImpl::allocate(size);
    if (given.first == nullptr) {
      return given;
    }
    checks::locked_taken(given.first, size);
    if (settings().poison && settings().time.empty()) {
      memset(given.first, 0xFF, size);
    }
    handed_out += static_cast<at::HostBlock<c10::Stream>*>(given.second)->size_;
    return given;
  }
  void free(void* block) override {
    if (block != nullptr) {
      const auto* own = static_cast<at::HostBlock<c10::Stream>*>(block);
      checks::locked_freed(own->ptr_, own->size_);
      handed_out -= own->size_;
    }
    CachingHostAllocatorImpl::free(block);
  }
  void copy_data(void* to, const void* from, std::size_t size) const override { memcpy(to, from, size); }

  void allocate_host_memory(size_t size, void** out) override {
    faults::throw_if_lost(current_device());
    *out = page_locked_room(size);
    if (*out == nullptr) {
      throw_cuda_error(Error::out_of_memory);
    }
    auto& locked = Locked::get();
    std::lock_guard<std::mutex> lock(locked.mutex);
    locked.ranges.emplace(static_cast<const char*>(*out), size);
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    faults::throw_if_lost(current_device());
    {
      auto& locked = Locked::get();
      std::lock_guard<std::mutex> lock(locked.mutex);
      locked.ranges.erase(static_cast<const char*>(block->ptr_));
    }
    release_page_locked(block->ptr_, block->size_);
  }
  void record_stream(std::optional<std::vector<Event>>& events, c10::Stream stream) override {
    events->push_back({stream.device_index(), of(stream).record()});
  }
  bool query_event(Event& event) override {
    faults::throw_if_lost(event.device);
    if (event.point->capture) {
      throw_cuda_error(Error::captured_event);
    }
    return event.point->query();
  }
  c10::Stream get_current_stream() const override {
    const int device = current_device();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
                       current_stream_id(device));
  }
  bool stream_is_capturing(c10::Stream stream) const override { return bool(of(stream).capture); }
};

void give_back(void* block);
using Interface = at::CachingHostAllocatorInterface<PinnedImpl, &give_back>;

struct Pinned final : Interface {
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
};

Pinned* pinned() {
  static auto* own = new Pinned();
  return own;
}

void give_back(void* block) { pinned()->free(block); }

}  // namespace

at::HostAllocator* pinned_allocator() { return pinned(); }

bool is_pinned(const void* address) {
  const auto* at = static_cast<const char*>(address);
  auto& locked = Locked::get();
  std::lock_guard<std::mutex> lock(locked.mutex);
  auto behind = locked.ranges.upper_bound(at);
  if (behind == locked.ranges.begin()) {
    return false;
  }
  const auto& [from, size] = *--behind;
  return at < from + size;
}

void use_pinned(const at::Tensor& tensor, const Stream& stream) {
  const c10::Stream used(c10::Stream::UNSAFE,
                         c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(stream.device)), stream.id);
  pinned()->record_event(tensor.data_ptr(), tensor.storage().data_ptr().get_context(), used);
}

}  // namespace sim

// For tests, through dlsym: bytes of page-locked memory in use.
extern "C" __attribute__((visibility("default"))) uint64_t sim_page_locked() { return sim::handed_out; }
