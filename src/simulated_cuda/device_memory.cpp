#include "device_memory.h"

#include "memory/device_cache.h"

#include "address_space.h"
#include "checks.h"
#include "faults.h"
#include "settings.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <deque>

namespace sim {

namespace {

using memory::Block;
using memory::DeviceCache;

void give_back(void* address);

struct Allocator final : CudaAllocator {
  Allocator() {
    for (int i = 0; i < settings().devices; ++i) {
      devices.emplace_back(i);
    }
  }

  void* take(size_t size, Stream& stream) {
    auto* block = devices.at(size_t(stream.device)).take(size, stream);
    std::lock_guard<std::mutex> lock(mutex);
    blocks.emplace(block->address, block);
    checks::taken(block->address, block->size, stream);
    if (stream.capture) {
      stream.capture->handed_out(block->address, block->size);
    }
    return block->address;
  }
  void give_back(void* address) {
    auto* block = find(address, true);
    TORCH_CHECK(block != nullptr, "invalid device pointer: ", address);
    devices.at(size_t(block->stream->device)).give_back(block);
  }
  Block* find(const void* address, bool remove) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = blocks.find(address);
    if (found == blocks.end()) {
      return nullptr;
    }
    auto* block = found->second;
    if (remove) {
      checks::freed(block->address, block->size);
      blocks.erase(found);
    }
    return block;
  }
  DeviceCache& of(DeviceIndex device) { return devices.at(size_t(device)); }

  at::DataPtr allocate(size_t size) override {
    TORCH_CHECK_WITH(OutOfMemoryError, size < size_t(1) << 60,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    const int device = current_device();
    void* data = size == 0 ? nullptr : take(size, current_stream(device));
    return {data, data, &sim::give_back, c10::Device(c10::kCUDA, static_cast<DeviceIndex>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &sim::give_back; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    const auto* begin = static_cast<const char*>(from);
    auto* end = static_cast<char*>(to);
    Entry copy;
    copy.what = "copy_data";
    copy.accesses = {{begin, begin + size, false}, {end, end + size, true}};
    copy.run = [to = bytes_of(to), from = bytes_of(from), size] { memcpy(to, from, size); };
    current_stream(current_device()).submit(std::move(copy));
  }

  bool initialized() override { return true; }
  void init(int) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }

  void* raw_alloc(size_t size) override { return size == 0 ? nullptr : take(size, current_stream(current_device())); }
  void* raw_alloc_with_stream(size_t size, void* stream) override {
    return size == 0 ? nullptr : take(size, *static_cast<Stream*>(stream));
  }
  void raw_delete(void* address) override { sim::give_back(address); }
  void* getBaseAllocation(void* address, size_t* size) override {
    const auto* block = find(address, false);
    TORCH_CHECK(block != nullptr, "invalid device pointer: ", address);
    const auto* first = block;
    while (first->before != nullptr) {
      first = first->before;
    }
    if (size != nullptr) {
      *size = 0;
      for (const auto* next = first; next != nullptr; next = next->after) {
        *size += next->size;
      }
    }
    return first->address;
  }

  // As libtorch: ignores memory that is wrapped in another deleter.
  void recordStream(const at::DataPtr& data, c10::Stream used) override {
    if (data.get() == nullptr || data.get_deleter() != &sim::give_back) {
      return;
    }
    auto* block = find(data.get(), false);
    TORCH_INTERNAL_ASSERT(block != nullptr, "No allocated block can be found");
    auto& stream = sim::stream(used.device_index(), used.id());
    checks::used_by(data.get(), stream);
    devices.at(size_t(block->stream->device)).note_use(block, stream);
  }
  void recordCudaStream(const at::DataPtr&, void*) override {}

  void emptyCache(Pool pool) override {
    for (auto& device : devices) {
      device.empty(pool);
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    faults::throw_if_lost(device);
    auto& own = memory::physical(device);
    return {own.free(), own.total()};
  }
  double getMemoryFraction(DeviceIndex device) override { return of(device).fraction(); }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK_VALUE(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                      ". Please set within [0, 1].");
    of(device).set_fraction(fraction);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return of(device).stats(); }
  void resetAccumulatedStats(DeviceIndex device) override { of(device).reset_accumulated_stats(); }
  void resetPeakStats(DeviceIndex device) override { of(device).reset_peak_stats(); }
  std::vector<int> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
  void cacheInfo(DeviceIndex, size_t*) override {}
  void snapshot(Pool, bool) override {}

  void beginAllocateToPool(DeviceIndex device, Pool pool, std::function<bool(void*)> filter) override {
    of(device).begin_pool(pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, Pool pool) override { of(device).end_pool(pool); }
  void releasePool(DeviceIndex device, Pool pool) override { of(device).release_pool(pool); }

 private:
  std::deque<DeviceCache> devices;
  std::mutex mutex;
  // Blocks in use, by address.
  std::unordered_map<const void*, Block*> blocks;
};

Allocator* allocator() {
  static auto* own = new Allocator();
  return own;
}

void give_back(void* address) {
  if (address != nullptr) {
    allocator()->give_back(address);
  }
}

}  // namespace

CudaAllocator* device_allocator() { return allocator(); }

}  // namespace sim
