// Vector clocks of work known to be over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sim::checks {

// By stream number: that many of its entries.
using Clock = std::vector<uint64_t>;

inline uint64_t of(const Clock& clock, size_t stream) { return stream < clock.size() ? clock[stream] : 0; }

inline void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) {
    into.resize(other.size());
  }
  for (size_t i = 0; i < other.size(); ++i) {
    into[i] = std::max(into[i], other[i]);
  }
}

}  // namespace sim::checks
