#include "timeline.h"

#include <algorithm>

namespace sim::timing {

namespace {

// Times as close as this are equal: sums of doubles are not exact.
constexpr double kSame = 1e-10;
enum { kKernels, kCopyIn, kCopyOut, kAway, kPeers };

}  // namespace

double Busy::take(double from, double length, double now) {
  while (!times.empty() && times.begin()->second < now) {
    times.erase(times.begin());
  }
  if (length <= 0) {
    return from;
  }
  // From the first busy time that ends after `from`, to the first that leaves enough room before
  // it.
  auto next = times.upper_bound(from);
  if (next != times.begin() && std::prev(next)->second > from) {
    --next;
  }
  double begin = from;
  for (; next != times.end() && next->first < begin + length - kSame; ++next) {
    begin = std::max(begin, next->second);
  }
  double end = begin + length;
  if (next != times.end() && next->first <= end + kSame) {
    end = next->second;
    next = times.erase(next);
  }
  if (next != times.begin()) {
    if (auto before = std::prev(next); before->second >= begin - kSame) {
      before->second = end;
      return begin;
    }
  }
  times.emplace_hint(next, begin, end);
  return begin;
}

Units::Units(int devices) : each(size_t(kPeers + devices)), units(each * size_t(devices)) {}

double Units::Unit::take(double from, double length, double now) {
  std::lock_guard<std::mutex> lock(mutex);
  return busy.take(from, length, now);
}

double Units::kernel(int device, double from, double length, double now) {
  return unit(device, kKernels).take(from, length, now);
}

double Units::copy_in(int device, double from, double length, double now) {
  return unit(device, kCopyIn).take(from, length, now);
}

double Units::copy_out(int device, double from, double length, double now) {
  return unit(device, kCopyOut).take(from, length, now);
}

double Units::copy_away(int from_device, double from, double length, double now) {
  return unit(from_device, kAway).take(from, length, now);
}

double Units::copy_peer(int from_device, int to_device, double from, double length, double now) {
  return unit(from_device, kPeers + to_device).take(from, length, now);
}

}  // namespace sim::timing
