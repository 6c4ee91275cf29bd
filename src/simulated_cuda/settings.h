// Settings of the simulation: one line of text, in `GPIPE_SIMULATE_GPUS`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

// Number of the operation to fail, on a device (-1: over all devices).
struct Fault {
  std::string what;
  int device;
  uint64_t number;
};

// `4`, or `8,memory=80GiB,delay=200us,seed=3`: the number of devices, then settings in any
// order. README.md has the table.
struct Settings {
  int devices = 0;
  // Bytes per device; 16 GiB, or that of the modelled device.
  size_t memory = 0;
  // Longest random delay of a stream's entry, in seconds; and the seed of delays.
  double delay = 0;
  uint64_t seed = 1;
  // Least time of a copy over a link (between devices, or to and from the host), in seconds, and
  // bytes per second (0: as fast as the host copies).
  double latency = 0;
  double bandwidth = 0;
  // Whether devices reach each other's memory.
  bool peers = true;
  // Whether memory is overwritten before it is handed out again.
  bool poison = true;
  // Whether submitted work is checked (see checks/).
  bool checks = true;
  // Whether the host waits for every entry, to find the one that fails.
  bool blocking = false;
  // Whether counts of what ran are printed at the end.
  bool counts = false;
  // Requested faults (see faults.h).
  std::vector<Fault> faults;
  // Model of the device whose time is simulated: kernels compute nothing, and there are no delays
  // and no checks. Empty: kernels compute (see timing/).
  std::string time;
  // With `time`: file for the trace of the run, written at the end.
  std::string trace;
};

// Throws std::invalid_argument with the error and its place.
Settings parse(const std::string& text);

// The settings of this process. An error in the text does not throw here: there are no devices
// then, and `settings_error` says why.
const Settings& settings();
const std::string& settings_error();

}  // namespace sim
