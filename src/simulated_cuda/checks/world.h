// All that the checks know.
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

// Memory that is handed out.
struct Allocation {
  const char* to = nullptr;
  // Other streams that use it, by number.
  std::set<size_t> users;
  // It was handed out in a capture: the graph uses it for as long as it lives.
  bool of_graph = false;
};

// Of the history of memory.
struct Event {
  uint64_t serial = 0;
  const char* from = nullptr;
  const char* to = nullptr;
  const char* what = "";
  const Stream* stream = nullptr;
  const char* thread = "";
};

// A capture that is under way.
struct UnderWay {
  const Capture* capture = nullptr;
  std::thread::id thread;
  const char* name = "";
};

struct World {
  static World& get();

  // Whether anything is checked: not where that is off, and not behind what was found.
  static bool on();

  Clock& clock(const Stream& stream);
  // Whether a use is over for certain when what the stream gets now begins.
  bool is_before(const Use& use, const Stream& stream);
  // The allocation that holds the whole range; null: there is none.
  Allocation* holding(const char* from, const char* to);
  void note(const char* from, const char* to, const char* what, const Stream* stream);
  UnderWay* capturing(const Capture* capture);

  // Prints what was found, with the memory's history, and ends the checks. Returns the sentence.
  std::string report(const std::string& sentence, const char* from, const char* to);
  [[noreturn]] void fail(const std::string& sentence, const char* from = nullptr, const char* to = nullptr);

  std::mutex mutex;
  // By number of the stream.
  std::vector<Clock> clocks;
  std::vector<const Stream*> streams;
  // What the host has waited for: over for all that is submitted later.
  Clock host;
  Shadow shadow;
  std::map<const char*, Allocation> allocations;
  std::vector<Event> history;
  uint64_t serial = 0;
  std::vector<UnderWay> captures;
  // Something was found.
  std::atomic<bool> found{false};
};

// Of the calling thread, as it was named first.
const char* thread_name();

// `stream 3 of cuda:1`, `bytes 0x7f.. to 0x7f.. of cuda:1`.
std::string name_of(const Stream* stream);
std::string name_of(const char* from, const char* to);

}  // namespace sim::checks
