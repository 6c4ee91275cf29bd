#include "capture.h"

#include "checks.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>

namespace sim {

namespace {

// Captures that a call on any thread can end.
struct Global {
  std::mutex mutex;
  std::set<Capture*> captures;

  static Global& get() {
    static auto* global = new Global();
    return *global;
  }
};

// The capture that the thread has begun.
Capture*& own_capture() {
  static thread_local Capture* capture = nullptr;
  return capture;
}

}  // namespace

Capture::Capture(Stream& origin, Pool pool, CaptureMode mode) : origin(origin), pool(pool), mode(mode) {
  clocks[&origin];
  if (mode == CaptureMode::own_thread) {
    own_capture() = this;
  } else if (mode == CaptureMode::global) {
    std::lock_guard<std::mutex> lock(Global::get().mutex);
    Global::get().captures.insert(this);
  }
}

Capture::~Capture() { leave(); }

void Capture::leave() {
  checks::capture_ended(*this);
  if (own_capture() == this) {
    own_capture() = nullptr;
  }
  {
    std::lock_guard<std::mutex> lock(Global::get().mutex);
    Global::get().captures.erase(this);
  }
  for (auto* stream : streams_of(origin.device)) {
    if (stream->capture.get() == this) {
      stream->capture = nullptr;
    }
  }
}

void Capture::break_off(const std::string& why) {
  broken = true;
  throw std::runtime_error("CUDA error: " + why);
}

void Capture::add(const Stream& stream, Entry entry) {
  // Overwriting fresh memory happens in every replay, and needs no wait.
  if (entry.unit != Unit::nothing) {
    ++clocks[&stream][&stream];
    computes = true;
  }
  entries.push_back(std::move(entry));
}

void Capture::handed_out(const void* address, size_t size) {
  const auto* from = static_cast<const char*>(address);
  Entry mark;
  mark.run = [] {};
  mark.what = "handed out";
  mark.unit = Unit::nothing;
  mark.accesses = {{from, from + size}};
  mark.accesses[0].of_graph = mark.accesses[0].fresh = true;
  entries.push_back(std::move(mark));
}

void Capture::recorded(const Stream& stream, Point& point) {
  point.capture_clock = clocks[&stream];
}

void Capture::waited(Stream& stream, const Point& point) {
  auto& own = clocks[&stream];
  for (const auto& [other, count] : point.capture_clock) {
    own[other] = std::max(own[other], count);
  }
}

void Capture::end() {
  leave();
  if (broken) {
    throw std::runtime_error("CUDA error: operation failed due to a previous error during capture");
  }
  auto& known = clocks[&origin];
  for (const auto& [stream, clock] : clocks) {
    const auto own = clock.find(stream);
    if (stream != &origin && own != clock.end() && known[stream] < own->second) {
      broken = true;
      throw std::runtime_error("CUDA error: capturing stream has unjoined work");
    }
  }
}

void unsafe_in_captures() {
  const std::string why = "operation not permitted when stream is capturing";
  if (own_capture() != nullptr) {
    own_capture()->break_off(why);
  }
  std::lock_guard<std::mutex> lock(Global::get().mutex);
  for (auto* capture : Global::get().captures) {
    capture->broken = true;
  }
  if (!Global::get().captures.empty()) {
    throw std::runtime_error("CUDA error: " + why);
  }
}

}  // namespace sim
