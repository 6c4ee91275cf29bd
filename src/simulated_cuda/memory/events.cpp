// Blocks that streams other than their own have used: they are free when those have come to
// where they were when the block was given back.
//
// All of it can throw: a lost device answers these calls with its error, as any other.
#include "device_cache.h"

#include "../errors.h"
#include "../faults.h"

namespace sim::memory {

namespace {

// cudaEventQuery.
bool is_over(Stream& stream, Point& point) {
  faults::throw_if_lost(stream.device);
  if (point.capture) {
    throw_cuda_error(Error::captured_event);
  }
  return point.query();
}

}  // namespace

void DeviceCache::record_events(Block* block) {
  const auto users = std::move(block->users);
  block->users.clear();
  for (auto* stream : users) {
    auto point = stream->record();
    ++block->events;
    events[stream].emplace_back(std::move(point), block);
  }
}

// For what was given back during a capture. As libtorch does, it forgets what was noted during
// a capture, whose streams have come to an end: of streams that were not in it that is not true
// (reviews/cuda.md, L1).
void DeviceCache::record_deferred_events() {
  for (auto* block : std::exchange(deferred, {})) {
    if (const auto noted = noted_in_capture.find(block); noted != noted_in_capture.end()) {
      for (auto* stream : noted->second) {
        block->users.erase(stream);
      }
      noted_in_capture.erase(noted);
    }
    record_events(block);
    if (block->events == 0) {
      make_free(block);
    }
  }
}

void DeviceCache::look_at_events() {
  record_deferred_events();
  for (auto it = events.begin(); it != events.end();) {
    auto& [stream, waiting] = *it;
    while (!waiting.empty() && is_over(*stream, *waiting.front().first)) {
      auto* block = waiting.front().second;
      waiting.pop_front();
      if (--block->events == 0) {
        make_free(block);
      }
    }
    it = waiting.empty() ? events.erase(it) : std::next(it);
  }
}

// Of a pool alone, or (null) of all.
void DeviceCache::wait_for_events(const PrivatePool* pool) {
  ++own_stats.num_sync_all_streams;
  TORCH_INTERNAL_ASSERT(captures.empty());
  record_deferred_events();
  for (auto it = events.begin(); it != events.end();) {
    auto& [stream, waiting] = *it;
    std::deque<std::pair<std::shared_ptr<Point>, Block*>> others;
    while (!waiting.empty()) {
      auto [point, block] = waiting.front();
      if (pool != nullptr && block->pool->owner != pool) {
        others.push_back(waiting.front());
        waiting.pop_front();
        continue;
      }
      if (!is_over(*stream, *point)) {
        point->wait();
        faults::throw_if_lost(stream->device);
      }
      waiting.pop_front();
      if (--block->events == 0) {
        make_free(block);
      }
    }
    waiting = std::move(others);
    it = waiting.empty() ? events.erase(it) : std::next(it);
  }
}

}  // namespace sim::memory
