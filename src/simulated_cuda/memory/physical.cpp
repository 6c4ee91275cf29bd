#include "physical.h"

#include "../address_space.h"
#include "../faults.h"
#include "../settings.h"
#include "../stream.h"

#include <c10/util/Exception.h>

#include <deque>
#include <sys/mman.h>

namespace sim::memory {

namespace {

// Ranges begin at multiples of this, followed by an unowned gap: a kernel that reads beyond its
// memory hits no other range.
constexpr size_t kAlignment = size_t(2) << 20;
constexpr size_t kBetween = 4096;

size_t spread(size_t size) { return (size + kBetween + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

size_t Physical::total() const { return settings().memory; }

size_t Physical::free() {
  std::lock_guard<std::mutex> lock(mutex);
  return total() - used;
}

// The lowest gap that is large enough, or the end of all memory ever handed out.
char* Physical::place(size_t size) {
  for (auto gap = gaps.begin(); gap != gaps.end(); ++gap) {
    const auto [address, room] = *gap;
    if (room >= size) {
      gaps.erase(gap);
      if (room > size) {
        gaps.emplace(address + size, room - size);
      }
      return address;
    }
  }
  TORCH_CHECK(top + size <= kAddresses, "simulated cuda:", device, " has no addresses left");
  auto* address = device_base(device) + top;
  top += size;
  return address;
}

char* Physical::take(size_t size) {
  faults::throw_if_lost(device);
  if (faults::hits(faults::Kind::segment, device)) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (size > total() - used) {
    return nullptr;
  }
  auto* address = place(spread(size));
  taken.emplace(address, size);
  used += size;
  return address;
}

void Physical::wait() const {
  for (auto* stream : streams_of(device)) {
    if (!stream->capture) {
      stream->synchronize();
    }
  }
}

void Physical::give_back(char* address) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = taken.find(address);
  const size_t size = found->second;
  taken.erase(found);
  used -= size;
  madvise(bytes_of(address), size, MADV_DONTNEED);
  // Merges adjacent gaps.
  size_t room = spread(size);
  if (const auto next = gaps.find(address + room); next != gaps.end()) {
    room += next->second;
    gaps.erase(next);
  }
  auto before = gaps.lower_bound(address);
  if (before != gaps.begin() && (--before)->first + before->second == address) {
    before->second += room;
    return;
  }
  gaps.emplace(address, room);
}

Physical& physical(int device) {
  static auto* all = [] {
    auto* all = new std::deque<Physical>();
    for (int i = 0; i < settings().devices; ++i) {
      all->emplace_back(i);
    }
    return all;
  }();
  return all->at(size_t(device));
}

}  // namespace sim::memory
