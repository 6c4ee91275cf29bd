// When what would run: units of devices that do one thing at a time.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace sim::timing {

// When something is busy, in seconds of any clock. What is free between two busy times is
// taken by whoever fits: who waits for others keeps nobody from running meanwhile.
class Busy {
 public:
  // The begin of the first free time of this length that does not begin before `from`, which
  // is taken. Nobody asks for anything before `now` any more.
  double take(double from, double length, double now);
  // Busy times without a gap between them.
  size_t pieces() const { return times.size(); }

 private:
  // From begin to end.
  std::map<double, double> times;
};

// The units of so many devices: each has one for kernels, one for copies from the host, one
// for those to it, one to other nodes, and one for each other device of its node that it copies to.
class Units {
 public:
  explicit Units(int devices);
  double kernel(int device, double from, double length, double now);
  double copy_in(int device, double from, double length, double now);
  double copy_out(int device, double from, double length, double now);
  double copy_peer(int from_device, int to_device, double from, double length, double now);
  double copy_away(int from_device, double from, double length, double now);

 private:
  struct Unit {
    std::mutex mutex;
    Busy busy;
    double take(double from, double length, double now);
  };
  Unit& unit(int device, int which) { return units[size_t(device) * each + size_t(which)]; }

  size_t each;
  std::vector<Unit> units;
};

}  // namespace sim::timing
