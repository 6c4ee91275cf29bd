// Time plan of the units of devices, each of which does one thing at a time.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace sim::timing {

// Busy times of a unit, in seconds of any clock. Gaps are filled by any entry that fits: one that
// waits for others does not keep later ones from running meanwhile.
class Busy {
 public:
  // Takes the first free time of this length not before `from`, and returns its begin. No later
  // call asks for a time before `now`.
  double take(double from, double length, double now);
  // Number of busy times, not counting adjacent ones separately.
  size_t pieces() const { return times.size(); }

 private:
  // From begin to end.
  std::map<double, double> times;
};

// The units of `devices` devices: each has one for kernels, one for copies from the host, one for
// copies to it, one for copies to other nodes, and one for each other device of its node that it
// copies to.
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
