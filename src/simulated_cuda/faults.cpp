#include "faults.h"

#include "errors.h"
#include "settings.h"

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <unistd.h>

namespace sim::faults {

namespace {

// Names of the kinds in settings and tests, by number.
constexpr std::array<const char*, 7> kNames = {"allocation", "segment",  "page-locked", "copy",
                                               "transfer",   "kernel", "stall"};

// Count of an operation, the first one to fail (0: none), and how many fail from there on.
struct Counter {
  std::atomic<uint64_t> counted{0};
  std::atomic<uint64_t> fails{0};
  std::atomic<uint64_t> times{1};

  bool hits() {
    const uint64_t number = ++counted;
    const uint64_t first = fails;
    return first != 0 && number >= first && number - first < times;
  }
};

// By device and kind; the last device stands for all of them.
struct Counters {
  std::vector<std::array<Counter, kNames.size()>> of{size_t(settings().devices) + 1};

  Counters() {
    for (const auto& fault : settings().faults) {
      if (auto* counter = find(fault.what, fault.device)) {
        counter->fails = fault.number;
      }
    }
  }
  Counter& at(size_t kind, int device) { return (device < 0 ? of.back() : of.at(size_t(device))).at(kind); }
  Counter* find(const std::string& what, int device) {
    for (size_t kind = 0; kind < kNames.size(); ++kind) {
      if (what == kNames[kind] && device < settings().devices) {
        return &at(kind, device);
      }
    }
    return nullptr;
  }
  static Counters& get() {
    static auto* all = new Counters();
    return *all;
  }
};

// Devices that are lost, and why.
struct Lost {
  std::mutex mutex;
  std::atomic<int> count{0};
  std::map<int, std::string> why;
};

Lost& lost() {
  static auto* lost = new Lost();
  return *lost;
}

bool is_lost(int device) {
  if (lost().count == 0) {
    return false;
  }
  std::lock_guard<std::mutex> lock(lost().mutex);
  return lost().why.count(device) > 0;
}

// The device's own message; the host learns of it at its next call.
void lose(int device, const std::string& why) {
  std::lock_guard<std::mutex> lock(lost().mutex);
  if (lost().why.emplace(device, why).second) {
    ++lost().count;
    fprintf(stderr, "simulated cuda:%d: %s\n", device, why.c_str());
    stop_first_at_the_end();
  }
}

bool is_copy(Unit unit) { return unit == Unit::copy_in || unit == Unit::copy_out || unit == Unit::copy_peer; }

// Kernels held back by the host.
struct Holding {
  // Whether `next` is not empty: without a request no lock is taken.
  std::atomic<bool> asked{false};
  std::mutex mutex;
  std::condition_variable over;
  std::set<int> next;
  uint64_t held = 0;
  uint64_t released = 0;
};

Holding& holding() {
  static auto* holding = new Holding();
  return *holding;
}

void hold(Stream& stream, Entry& entry) {
  auto& all = holding();
  if (!all.asked) {
    return;
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.next.erase(stream.device) == 0) {
    return;
  }
  all.asked = !all.next.empty();
  entry.run = [run = std::move(entry.run), number = ++all.held] {
    auto& all = holding();
    std::unique_lock<std::mutex> lock(all.mutex);
    all.over.wait(lock, [&] { return all.released >= number; });
    lock.unlock();
    run();
  };
}

// Whether the host's call fails, rather than work in progress.
bool fails_at_once(Kind kind) {
  return kind == Kind::allocation || kind == Kind::segment || kind == Kind::page_locked || kind == Kind::copy;
}

[[noreturn]] void never_end() {
  for (;;) {
    pause();
  }
}

}  // namespace

bool hits(Kind kind, int device) {
  auto& counters = Counters::get();
  const bool own = counters.at(size_t(kind), device).hits();
  const bool any = counters.at(size_t(kind), -1).hits();
  // The error itself does not mention the request; for work of a stream, `lose` prints it.
  if ((own || any) && fails_at_once(kind)) {
    fprintf(stderr, "simulated cuda:%d: %s fails, as asked\n", device, kNames.at(size_t(kind)));
  }
  return own || any;
}

void submitted(Stream& stream, Entry& entry) {
  if (entry.unit == Unit::kernel) {
    if (hits(Kind::kernel, stream.device)) {
      entry.run = [] { throw std::runtime_error("fails, as asked"); };
    }
    if (hits(Kind::stall, stream.device)) {
      entry.run = never_end;
    }
    hold(stream, entry);
  }
  if (is_copy(entry.unit)) {
    if (hits(Kind::copy, stream.device)) {
      throw_cuda_error(Error::invalid_value);
    }
    if (hits(Kind::transfer, stream.device)) {
      entry.run = [] { throw std::runtime_error("fails, as asked"); };
    }
  }
}

void run(Stream& stream, Entry& entry) {
  if (entry.unit != Unit::nothing && is_lost(stream.device)) {
    return;
  }
  try {
    entry.run();
  } catch (const std::exception& error) {
    std::string text = error.what();
    text = text.substr(0, text.find("\nException raised"));
    lose(stream.device, std::string(entry.what) + ": " + text);
  }
}

void throw_if_lost(int device) {
  if (is_lost(device)) {
    throw_cuda_error(Error::device_assert);
  }
}

}  // namespace sim::faults

// For tests, through dlsym. Makes `times` operations fail, from the `number`-th from now on (0:
// none), on a device (-1: on all devices). Returns whether the kind exists.
extern "C" __attribute__((visibility("default"))) int sim_fail(const char* what, int device, uint64_t number,
                                                               uint64_t times) {
  auto* counter = sim::faults::Counters::get().find(what, device);
  if (counter != nullptr) {
    counter->times = times;
    counter->fails = number == 0 ? 0 : counter->counted + number;
  }
  return counter != nullptr;
}

// Number of operations so far.
extern "C" __attribute__((visibility("default"))) uint64_t sim_counted(const char* what, int device) {
  auto* counter = sim::faults::Counters::get().find(what, device);
  return counter == nullptr ? 0 : counter->counted.load();
}

// For tests: the next kernel of a device does not begin before `sim_release`.
extern "C" __attribute__((visibility("default"))) void sim_hold(int device) {
  auto& all = sim::faults::holding();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.next.insert(device);
  all.asked = true;
}

extern "C" __attribute__((visibility("default"))) void sim_release() {
  auto& all = sim::faults::holding();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    all.released = all.held;
  }
  all.over.notify_all();
}
