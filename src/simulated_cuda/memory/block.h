// Pieces of segments, and the pools of free ones.
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

// Memory from cudaMalloc. The part from `fresh` on was never handed out.
struct Segment {
  char* fresh;
  // Until it is returned to the driver.
  std::shared_ptr<std::atomic<bool>> alive = std::make_shared<std::atomic<bool>>(true);
};

// Freed memory.
struct Range {
  char* address;
  size_t size;
  const Segment* segment;
};

struct BlockPool;

// A piece of a segment: in use, free, or freed but still used by other streams. The pieces of a
// segment form a list.
struct Block {
  Block(Stream* stream, char* address, size_t size, BlockPool* pool, Segment* segment)
      : stream(stream), address(address), size(size), pool(pool), segment(segment) {}

  bool is_split() const { return before != nullptr || after != nullptr; }
  // Whether nothing uses it.
  bool is_free() const { return !allocated && events == 0 && users.empty(); }
  char* end() const { return address + size; }

  // The stream that it belongs to, even while free.
  Stream* stream;
  char* address;
  size_t size;
  // Size before rounding up.
  size_t requested = 0;
  BlockPool* pool;
  Segment* segment;
  bool allocated = false;
  // Number of unfinished points of other streams.
  int events = 0;
  // Other streams recorded as using it.
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
  // Ranges freed since the stream last took memory (see poison.h).
  std::unordered_map<Stream*, std::vector<Range>> dirty;
};

// Pools of graphs: they keep their addresses as long as a graph or a tensor uses them.
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
