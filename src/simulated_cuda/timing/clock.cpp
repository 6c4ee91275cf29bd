#include "clock.h"

#include "timeline.h"
#include "trace.h"

#include "../settings.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

namespace sim::timing {

namespace {

// How much earlier the host wakes up, to poll the clock for the rest.
constexpr double kSpin = 20e-6;
constexpr uintptr_t kPage = 4096;
// Size from which the system provides zero pages that take no memory.
constexpr size_t kManyBytes = size_t(1) << 18;

Units& units() {
  static auto* units = new Units(settings().devices);
  return *units;
}

// Time of the clock frozen by tests; below 0: it runs.
std::atomic<double> frozen{-1};

double begin_of(const Entry& entry, int device, double from, double now) {
  const double length = entry.seconds;
  switch (entry.unit) {
    case Unit::kernel:
      return units().kernel(device, from, length, now);
    case Unit::copy_in:
      return units().copy_in(device, from, length, now);
    case Unit::copy_out:
      return units().copy_out(device, from, length, now);
    case Unit::copy_peer:
      if (model().apart(device, entry.peer)) {
        return units().copy_away(device, from, length, now);
      }
      return units().copy_peer(device, entry.peer, from, length, now);
    case Unit::nothing:
      break;
  }
  return from;
}

}  // namespace

double now() {
  const double at = frozen.load(std::memory_order_relaxed);
  return at < 0 ? sim::now() : at;
}

void freeze(double at) { frozen = at; }

bool on() {
  static const bool on = !settings().time.empty();
  return on;
}

const DeviceModel& model() {
  static const auto* model = new DeviceModel(device_model(settings().time));
  return *model;
}

double end_of(const Entry& entry, int device, double ready) {
  const double now = timing::now();
  const double from = std::max(now, ready);
  const double begin = begin_of(entry, device, from, now);
  trace(entry, device, begin, entry.seconds);
  return begin + entry.seconds;
}

void fill_with_zeros(const at::Tensor& host) {
  if (!host.is_non_overlapping_and_dense()) {
    host.zero_();
    return;
  }
  auto* from = static_cast<char*>(host.mutable_data_ptr());
  auto* to = from + host.nbytes();
  const auto page = [](char* address) { return (reinterpret_cast<uintptr_t>(address) + kPage - 1) / kPage * kPage; };
  auto* first = reinterpret_cast<char*>(page(from));
  auto* last = reinterpret_cast<char*>(page(to) - kPage);
  if (host.nbytes() < kManyBytes || last <= first || madvise(first, size_t(last - first), MADV_DONTNEED) != 0) {
    first = last = to;
  }
  memset(from, 0, size_t(first - from));
  memset(last, 0, size_t(to - last));
}

void sleep_until(double when) {
  if (frozen >= 0) {
    freeze(std::max(now(), when));
    return;
  }
  thread_local const bool precise = prctl(PR_SET_TIMERSLACK, 1) == 0;
  (void)precise;
  const double wake = when - kSpin;
  if (wake > now()) {
    timespec time;
    time.tv_sec = static_cast<time_t>(wake);
    time.tv_nsec = static_cast<long>((wake - std::floor(wake)) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
  }
  while (now() < when) {
  }
}

}  // namespace sim::timing
