// Pieces of segments, and the pools that free ones wait in.
#pragma once

#include "../stream.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sim::memory {

using PoolId = c10::MempoolId_t;

// What cudaMalloc gave. What is behind `fresh` was never handed out.
struct Segment {
  char* fresh;
  // Until it goes back to the driver.
  std::shared_ptr<std::atomic<bool>> alive = std::make_shared<std::atomic<bool>>(true);
};

// Memory that was given back.
struct Range {
  char* address;
  size_t size;
  const Segment* segment;
};

struct BlockPool;

// A piece of a segment: handed out, or free, or given back and still used by other streams.
// Its neighbours of the segment are a list.
struct Block {
  Block(Stream* stream, char* address, size_t size, BlockPool* pool, Segment* segment)
      : stream(stream), address(address), size(size), pool(pool), segment(segment) {}

  bool is_split() const { return before != nullptr || after != nullptr; }
  // Nobody uses it.
  bool is_free() const { return !allocated && events == 0 && users.empty(); }
  char* end() const { return address + size; }

  // It belongs to this stream alone, also while it is free.
  Stream* stream;
  char* address;
  size_t size;
  // Before it was rounded up.
  size_t requested = 0;
  BlockPool* pool;
  Segment* segment;
  bool allocated = false;
  // Points of other streams that are not over yet.
  int events = 0;
  // Streams that were told to use it.
  std::unordered_set<Stream*> users;
  Block* before = nullptr;
  Block* after = nullptr;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) {
      return std::less<>()(a->stream, b->stream);
    }
    return a->size != b->size ? a->size < b->size : std::less<>()(a->address, b->address);
  }
};

struct PrivatePool;

// Free blocks, of small or of large requests.
struct BlockPool {
  explicit BlockPool(bool small, PrivatePool* owner = nullptr) : small(small), owner(owner) {}

  const bool small;
  PrivatePool* const owner;
  std::set<Block*, BySize> blocks;
  // What was given back since the stream took memory last (see poison.h).
  std::unordered_map<Stream*, std::vector<Range>> dirty;
};

// The pools of graphs: addresses stay theirs while a graph or a tensor has them.
struct PrivatePool {
  explicit PrivatePool(PoolId id) : id(id) {}

  const PoolId id;
  // Graphs that may be replayed.
  int uses = 1;
  int segments = 0;
  BlockPool small{true, this};
  BlockPool large{false, this};
};

// How requests become blocks, and blocks segments.
inline size_t round_up(size_t size) {
  const size_t unit = c10::CachingAllocator::kMinBlockSize;
  return size < unit ? unit : (size + unit - 1) / unit * unit;
}
inline size_t segment_size(size_t size) {
  using namespace c10::CachingAllocator;
  if (size <= kSmallSize) {
    return kSmallBuffer;
  }
  if (size < kMinLargeAlloc) {
    return AcceleratorAllocatorConfig::large_segment_size();
  }
  return (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}
inline bool is_split_at(const Block& block, size_t size) {
  using namespace c10::CachingAllocator;
  const size_t rest = block.size - size;
  return block.pool->small ? rest >= kMinBlockSize : rest > kSmallSize;
}

}  // namespace sim::memory
