#include "counts.h"

#include "../settings.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace sim {

namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, std::pair<long, long>> of;

  static Counts& get() {
    static auto* counts = new Counts();
    return *counts;
  }

  static void print() {
    auto& own = get();
    std::lock_guard<std::mutex> lock(own.mutex);
    for (const auto& [what, times] : own.of) {
      fprintf(stderr, "simulated GPUs: %-60s %8ld, with a wait %6ld\n", what.c_str(), times.first, times.second);
    }
  }
};

}  // namespace

void count(const std::string& what, bool waits) {
  if (!settings().counts) {
    return;
  }
  static const int registered = std::atexit(&Counts::print);
  (void)registered;
  auto& own = Counts::get();
  std::lock_guard<std::mutex> lock(own.mutex);
  auto& times = own.of[what];
  ++(waits ? times.second : times.first);
}

}  // namespace sim
