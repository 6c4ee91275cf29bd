#include "device_cache.h"

#include <algorithm>

namespace sim::memory {

DeviceCache::DeviceCache(int device) : device(device) {
  own_stats.max_split_size = int64_t(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
}

void DeviceCache::change(c10::CachingAllocator::StatArray& stat, const BlockPool& pool, int64_t amount) {
  using c10::CachingAllocator::StatType;
  const auto kind = pool.small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
  for (const auto type : {StatType::AGGREGATE, kind}) {
    auto& one = stat[static_cast<size_t>(type)];
    amount < 0 ? one.decrease(size_t(-amount)) : one.increase(size_t(amount));
  }
}

void DeviceCache::note_use(Block* block, Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex);
  if (block->stream == &stream) {
    return;
  }
  block->users.insert(&stream);
  if (!captures.empty()) {
    noted_in_capture[block].insert(&stream);
  }
}

// A fraction of 1 is no limit.
void DeviceCache::set_fraction(double fraction) {
  std::lock_guard<std::mutex> lock(mutex);
  allowed.reset();
  if (fraction < 1) {
    allowed = size_t(fraction * double(physical(device).total()));
  }
}

double DeviceCache::fraction() {
  std::lock_guard<std::mutex> lock(mutex);
  return allowed.has_value() ? double(*allowed) / double(physical(device).total()) : 1.0;
}

void DeviceCache::empty(PoolId pool) {
  std::lock_guard<std::mutex> lock(mutex);
  release_cached(pool);
}

void DeviceCache::begin_pool(PoolId pool, Filter filter) {
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = pools.find(pool); found != pools.end()) {
    TORCH_INTERNAL_ASSERT(found->second->uses > 0);
    ++found->second->uses;
  } else {
    pools.emplace(pool, std::make_unique<PrivatePool>(pool));
  }
  for (const auto& capture : captures) {
    TORCH_CHECK(capture.first != pool, "beginAllocateToPool: already recording to mempool_id");
  }
  captures.emplace_back(pool, std::move(filter));
}

void DeviceCache::end_pool(PoolId pool) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found =
      std::find_if(captures.begin(), captures.end(), [&](const auto& capture) { return capture.first == pool; });
  TORCH_CHECK(found != captures.end(), "endAllocatePool: not currently recording to mempool_id");
  captures.erase(found);
}

// Its memory may return to the driver once no tensor uses it.
void DeviceCache::release_pool(PoolId pool) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = pools.find(pool);
  TORCH_INTERNAL_ASSERT(found != pools.end());
  auto& own = *found->second;
  --own.uses;
  TORCH_INTERNAL_ASSERT(own.uses >= 0);
  if (own.uses == 0) {
    const bool fresh = freeable.emplace(pool, &own).second;
    TORCH_INTERNAL_ASSERT(fresh);
  }
}

DeviceCache::Stats DeviceCache::stats() {
  std::lock_guard<std::mutex> lock(mutex);
  return own_stats;
}

namespace {

template <typename Reset>
void each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, Reset&& reset) {
  for (auto* array : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                      &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                      &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) {
      reset(stat);
    }
  }
}

}  // namespace

void DeviceCache::reset_accumulated_stats() {
  std::lock_guard<std::mutex> lock(mutex);
  each_stat(own_stats, [](auto& stat) { stat.reset_accumulated(); });
  own_stats.num_alloc_retries = 0;
  own_stats.num_ooms = 0;
  own_stats.num_sync_all_streams = 0;
  own_stats.num_device_alloc = 0;
  own_stats.num_device_free = 0;
}

void DeviceCache::reset_peak_stats() {
  std::lock_guard<std::mutex> lock(mutex);
  each_stat(own_stats, [](auto& stat) { stat.reset_peak(); });
}

}  // namespace sim::memory
