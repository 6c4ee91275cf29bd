// Blocks used by other streams than their own: free when those streams have reached the points at
// which they were when the block was freed.
//
// All of this can throw: a lost device answers these calls with its error, too.
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

// Records events for blocks freed during a capture. As libtorch does, forgets uses recorded during
// a capture, as if their streams had finished: wrong for streams outside of the capture
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

// Waits for events of one pool, or of all (null).
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
