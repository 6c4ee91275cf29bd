// Blocks: taken from the pools, split, freed and merged.
#include "device_cache.h"
#include "poison.h"

#include "../faults.h"

#include <array>
#include <utility>

namespace sim::memory {

Block* DeviceCache::take(size_t requested, Stream& stream) {
  std::unique_lock<std::mutex> lock(mutex);
  if (captures.empty()) {
    look_at_events();  // which CUDA forbids during a capture
  }
  const size_t size = round_up(requested);
  auto& pool = pool_for(size, stream);
  // A request that is to fail finds no room in the cache either.
  const bool refused = faults::hits(faults::Kind::allocation, device);
  auto* block = refused ? nullptr : cached(pool, size, stream);
  if (block == nullptr) {
    block = with_more_room(pool, size, stream, refused);
  }
  if (block == nullptr) {
    throw_out_of_memory(segment_size(size), std::move(lock));
  }
  return hand_out(block, size, requested);
}

// Chooses the pool; a graph's pool for streams of a capture.
BlockPool& DeviceCache::pool_for(size_t size, Stream& stream) {
  const bool is_small = size <= c10::CachingAllocator::kSmallSize;
  for (const auto& [id, filter] : captures) {
    if (filter(&stream)) {
      auto& own = *pools.at(id);
      return is_small ? own.small : own.large;
    }
  }
  return is_small ? small : large;
}

// The smallest block that is large enough.
Block* DeviceCache::cached(BlockPool& pool, size_t size, Stream& stream) {
  Block wanted(&stream, nullptr, size, nullptr, nullptr);
  const auto found = pool.blocks.lower_bound(&wanted);
  if (found == pool.blocks.end() || (*found)->stream != &stream) {
    return nullptr;
  }
  auto* block = *found;
  pool.blocks.erase(found);
  return block;
}

Block* DeviceCache::hand_out(Block* block, size_t size, size_t requested) {
  auto& pool = *block->pool;
  const bool was_split = block->is_split();
  if (is_split_at(*block, size)) {
    const auto rest = int64_t(block->size - size);
    block = split(block, size);
    if (was_split) {
      change(own_stats.inactive_split_bytes, pool, -int64_t(size));
    } else {
      change(own_stats.inactive_split_bytes, pool, rest);
      change(own_stats.inactive_split, pool, 1);
    }
  } else if (was_split) {
    change(own_stats.inactive_split_bytes, pool, -int64_t(block->size));
    change(own_stats.inactive_split, pool, -1);
  }
  overwrite_before(*block);
  block->allocated = true;
  block->requested = requested;
  change(own_stats.allocation, pool, 1);
  change(own_stats.allocated_bytes, pool, int64_t(block->size));
  change(own_stats.active, pool, 1);
  change(own_stats.active_bytes, pool, int64_t(block->size));
  change(own_stats.requested_bytes, pool, int64_t(requested));
  return block;
}

// Splits the front off; the rest is free.
Block* DeviceCache::split(Block* rest, size_t size) {
  auto* front = new Block(rest->stream, rest->address, size, rest->pool, rest->segment);
  front->before = rest->before;
  if (front->before != nullptr) {
    front->before->after = front;
  }
  front->after = rest;
  rest->before = front;
  rest->address += size;
  rest->size -= size;
  rest->pool->blocks.insert(rest);
  return front;
}

void DeviceCache::give_back(Block* block) {
  std::lock_guard<std::mutex> lock(mutex);
  block->allocated = false;
  change(own_stats.allocation, *block->pool, -1);
  change(own_stats.allocated_bytes, *block->pool, -int64_t(block->size));
  if (block->users.empty()) {
    make_free(block);
  } else if (!captures.empty()) {
    deferred.push_back(block);  // no event may be recorded for it now
  } else {
    record_events(block);
  }
}

// A block that nothing uses any more joins its free neighbours, and goes to its pool.
void DeviceCache::make_free(Block* block) {
  given_back(*block);
  auto& pool = *block->pool;
  const auto size = int64_t(block->size);
  int64_t split_blocks = 0, split_bytes = 0;
  for (auto* neighbour : std::array<Block*, 2>{block->before, block->after}) {
    if (const size_t joined = merge(block, neighbour); joined > 0) {
      --split_blocks;
      split_bytes -= int64_t(joined);
    }
  }
  pool.blocks.insert(block);
  if (block->is_split()) {
    ++split_blocks;
    split_bytes += int64_t(block->size);
  }
  change(own_stats.inactive_split, pool, split_blocks);
  change(own_stats.inactive_split_bytes, pool, split_bytes);
  change(own_stats.active, pool, -1);
  change(own_stats.active_bytes, pool, -size);
  change(own_stats.requested_bytes, pool, -int64_t(block->requested));
}

// Bytes that the block gained from its neighbour.
size_t DeviceCache::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->is_free()) {
    return 0;
  }
  if (block->before == neighbour) {
    block->address = neighbour->address;
    block->before = neighbour->before;
    if (block->before != nullptr) {
      block->before->after = block;
    }
  } else {
    block->after = neighbour->after;
    if (block->after != nullptr) {
      block->after->before = block;
    }
  }
  const size_t joined = neighbour->size;
  block->size += joined;
  block->pool->blocks.erase(neighbour);
  delete neighbour;
  return joined;
}

}  // namespace sim::memory
