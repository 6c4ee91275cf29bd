// Segments: taken from the driver, and returned to it as a last resort.
#include "device_cache.h"
#include "poison.h"

#include <c10/util/Exception.h>

#include <cstdio>

namespace sim::memory {

// Null if there is no room.
Block* DeviceCache::new_segment(BlockPool& pool, size_t size, Stream& stream) {
  if (allowed.has_value() && reserved + size > *allowed) {
    return nullptr;
  }
  auto* address = physical(device).take(size);
  if (address == nullptr) {
    return nullptr;
  }
  reserved += size;
  if (pool.owner != nullptr) {
    ++pool.owner->segments;
  }
  ++own_stats.num_device_alloc;
  change(own_stats.segment, pool, 1);
  change(own_stats.reserved_bytes, pool, int64_t(size));
  return new Block(&stream, address, size, &pool, new Segment{address});
}

// A new segment; if there is no room, a second try after all cached memory was returned. `refused`:
// fail the request.
Block* DeviceCache::with_more_room(BlockPool& pool, size_t size, Stream& stream, bool refused) {
  const size_t whole = segment_size(size);
  auto* block = refused ? nullptr : new_segment(pool, whole, stream);
  if (block == nullptr && captures.empty() && release_cached({})) {
    ++own_stats.num_alloc_retries;
    block = refused ? nullptr : new_segment(pool, whole, stream);
  }
  return block;
}

bool DeviceCache::release_cached(PoolId pool) {
  const bool every = pool == PoolId{};
  if (every && captures.empty()) {
    wait_for_events(nullptr);
    release_blocks(large);
    release_blocks(small);
  }
  for (auto it = freeable.begin(); it != freeable.end();) {
    auto& [id, own] = *it;
    if (!every && id != pool) {
      ++it;
      continue;
    }
    if (!every) {
      wait_for_events(own);
    }
    release_blocks(own->small);
    release_blocks(own->large);
    if (own->segments > 0) {
      ++it;
      continue;
    }
    pools.erase(id);
    it = freeable.erase(it);
  }
  return true;
}

// Releases free blocks that are whole segments.
void DeviceCache::release_blocks(BlockPool& pool) {
  for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
    auto* block = *it;
    ++it;
    if (!block->is_split()) {
      release(block);
    }
  }
}

void DeviceCache::release(Block* segment) {
  physical(device).wait();
  forget(*segment->pool, *segment);
  physical(device).give_back(segment->address);
  auto& pool = *segment->pool;
  reserved -= segment->size;
  if (pool.owner != nullptr) {
    --pool.owner->segments;
  }
  ++own_stats.num_device_free;
  change(own_stats.segment, pool, -1);
  change(own_stats.reserved_bytes, pool, -int64_t(segment->size));
  pool.blocks.erase(segment);
  delete segment->segment;
  delete segment;
}

namespace {

// Formats sizes as libtorch does.
std::string text(size_t bytes) {
  char out[64];
  if (bytes <= 1024) {
    snprintf(out, sizeof(out), "%zu bytes", bytes);
  } else if (bytes <= 1048576) {
    snprintf(out, sizeof(out), "%.2f KiB", double(bytes) / 1024.0);
  } else if (bytes <= 1073741824) {
    snprintf(out, sizeof(out), "%.2f MiB", double(bytes) / 1048576.0);
  } else {
    snprintf(out, sizeof(out), "%.2f GiB", double(bytes) / 1073741824.0);
  }
  return out;
}

size_t free_bytes(const BlockPool& pool) {
  size_t sum = 0;
  for (const auto* block : pool.blocks) {
    sum += block->size;
  }
  return sum;
}

}  // namespace

void DeviceCache::throw_out_of_memory(size_t asked, std::unique_lock<std::mutex> lock) {
  ++own_stats.num_ooms;
  const size_t free = physical(device).free();
  const size_t total = physical(device).total();
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto allocated = size_t(own_stats.allocated_bytes[all].current);
  size_t of_graphs = 0;
  for (const auto& [id, pool] : pools) {
    of_graphs += free_bytes(pool->small) + free_bytes(pool->large);
  }
  const auto graphs =
      of_graphs == 0 ? "" : "with " + text(of_graphs) + " allocated in private pools (e.g., CUDA Graphs), ";
  const auto limit = allowed.has_value() ? text(*allowed) + " allowed; " : "";
  const size_t cached = reserved - allocated - of_graphs;
  lock.unlock();
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", text(asked), ". GPU ", device,
      " has a total capacity of ", text(total), " of which ", text(free),
      " is free. Including non-PyTorch memory, this process has ", text(total - free), " memory in use. ", limit,
      "Of the allocated memory ", text(allocated + of_graphs), " is allocated by PyTorch, ", graphs, "and ",
      text(cached),
      " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
      "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
      "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
}

}  // namespace sim::memory
