// The caching allocator of one device, after libtorch 2.11's DeviceCachingAllocator
// (CUDACachingAllocator.cpp) with default settings. Decisions about which request gets which memory
// when are the same; expandable segments, snapshots, garbage collection and sharing between
// processes are missing.
#pragma once

#include "block.h"
#include "physical.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

namespace sim::memory {

// Whether a stream (by its native handle) takes from a pool.
using Filter = std::function<bool(void*)>;

class DeviceCache {
 public:
  explicit DeviceCache(int device);

  Block* take(size_t size, Stream& stream);
  void give_back(Block* block);
  void note_use(Block* block, Stream& stream);

  void set_fraction(double fraction);
  double fraction();
  void empty(PoolId pool);

  void begin_pool(PoolId pool, Filter filter);
  void end_pool(PoolId pool);
  void release_pool(PoolId pool);

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  // blocks.cpp
  BlockPool& pool_for(size_t size, Stream& stream);
  Block* cached(BlockPool& pool, size_t size, Stream& stream);
  Block* hand_out(Block* block, size_t size, size_t requested);
  Block* split(Block* block, size_t size);
  void make_free(Block* block);
  size_t merge(Block* block, Block* neighbour);

  // segments.cpp
  Block* new_segment(BlockPool& pool, size_t size, Stream& stream);
  Block* with_more_room(BlockPool& pool, size_t size, Stream& stream, bool refused);
  bool release_cached(PoolId pool);
  void release_blocks(BlockPool& pool);
  void release(Block* segment);
  [[noreturn]] void throw_out_of_memory(size_t asked, std::unique_lock<std::mutex> lock);

  // events.cpp
  void record_events(Block* block);
  void record_deferred_events();
  void look_at_events();
  void wait_for_events(const PrivatePool* pool);

  void change(c10::CachingAllocator::StatArray& stat, const BlockPool& pool, int64_t amount);

  const int device;
  std::mutex mutex;
  Stats own_stats;
  BlockPool small{true};
  BlockPool large{false};
  size_t reserved = 0;
  std::optional<size_t> allowed;

  // Pools of graphs; those that are no longer replayed; and captures in progress.
  std::map<PoolId, std::unique_ptr<PrivatePool>> pools;
  std::map<PoolId, PrivatePool*> freeable;
  std::vector<std::pair<PoolId, Filter>> captures;

  // By stream, in order: points, and the blocks waiting for them.
  std::unordered_map<Stream*, std::deque<std::pair<std::shared_ptr<Point>, Block*>>> events;
  // Blocks freed during a capture, and used by other streams.
  std::vector<Block*> deferred;
  // Uses recorded during a capture, forgotten at its end.
  std::unordered_map<Block*, std::unordered_set<Stream*>> noted_in_capture;
};

}  // namespace sim::memory
