#include "poison.h"

#include "../address_space.h"
#include "../settings.h"

#include <algorithm>
#include <cstring>

namespace sim::memory {

namespace {

// Skipped if the segment returns to the driver before it runs.
void overwrite(Stream& stream, const Range& range) {
  Entry poison;
  poison.run = [at = bytes_of(range.address), size = range.size, alive = range.segment->alive] {
    if (*alive) {
      memset(at, 0xFF, size);
    }
  };
  poison.what = "poison";
  poison.unit = Unit::nothing;
  stream.submit_late(std::move(poison));
}

}  // namespace

void given_back(const Block& block) {
  if (settings().poison) {
    block.pool->dirty[block.stream].push_back({block.address, block.size, block.segment});
  }
}

void overwrite_before(Block& block) {
  if (!settings().poison) {
    return;
  }
  auto& dirty = block.pool->dirty[block.stream];
  for (const auto& range : dirty) {
    overwrite(*block.stream, range);
  }
  dirty.clear();
  // Blocks are split from the front, so memory never handed out is at the end of a segment.
  if (auto*& fresh = block.segment->fresh; block.end() > fresh) {
    auto* from = std::max(fresh, block.address);
    overwrite(*block.stream, {from, size_t(block.end() - from), block.segment});
    fresh = block.end();
  }
}

void forget(BlockPool& pool, const Block& segment) {
  *segment.segment->alive = false;
  const auto found = pool.dirty.find(segment.stream);
  if (found == pool.dirty.end()) {
    return;
  }
  auto& dirty = found->second;
  const auto inside = [&](const Range& range) { return range.segment == segment.segment; };
  dirty.erase(std::remove_if(dirty.begin(), dirty.end(), inside), dirty.end());
}

}  // namespace sim::memory
