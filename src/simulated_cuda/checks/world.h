// State of the checks.
#pragma once

#include "../checks.h"
#include "clock.h"
#include "shadow.h"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace sim::checks {

// Memory in use.
struct Allocation {
  const char* to = nullptr;
  // Other streams that use it, by number.
  std::set<size_t> users;
  // Handed out in a capture: used by the graph as long as it lives.
  bool of_graph = false;
};

// An event in the history of memory.
struct Event {
  uint64_t serial = 0;
  const char* from = nullptr;
  const char* to = nullptr;
  const char* what = "";
  const Stream* stream = nullptr;
  const char* thread = "";
};

// A capture in progress.
struct UnderWay {
  const Capture* capture = nullptr;
  std::thread::id thread;
  const char* name = "";
};

struct World {
  static World& get();

  // Whether checks run: not if they are off, and not after a finding.
  static bool on();

  Clock& clock(const Stream& stream);
  // Whether a use is certainly over when the next entry of the stream begins.
  bool is_before(const Use& use, const Stream& stream);
  // The allocation that holds the whole range; null if there is none.
  Allocation* holding(const char* from, const char* to);
  void note(const char* from, const char* to, const char* what, const Stream* stream);
  UnderWay* capturing(const Capture* capture);

  // Prints the finding with the memory's history, and ends the checks. Returns the sentence.
  std::string report(const std::string& sentence, const char* from, const char* to);
  [[noreturn]] void fail(const std::string& sentence, const char* from = nullptr, const char* to = nullptr);

  std::mutex mutex;
  // By stream number.
  std::vector<Clock> clocks;
  std::vector<const Stream*> streams;
  // Work that the host has waited for: over for everything submitted later.
  Clock host;
  Shadow shadow;
  std::map<const char*, Allocation> allocations;
  std::vector<Event> history;
  uint64_t serial = 0;
  std::vector<UnderWay> captures;
  // Whether something was found.
  std::atomic<bool> found{false};
};

// Name of the calling thread, as first set.
const char* thread_name();

// `stream 3 of cuda:1`, `bytes 0x7f.. to 0x7f.. of cuda:1`.
std::string name_of(const Stream* stream);
std::string name_of(const char* from, const char* to);

}  // namespace sim::checks
