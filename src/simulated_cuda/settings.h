// What is simulated: one line of text, in `GPIPE_SIMULATE_GPUS`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

// The so-manieth of what fails, on a device (-1: of all devices).
struct Fault {
  std::string what;
  int device;
  uint64_t number;
};

// `4`, or `8,memory=80GiB,delay=200us,seed=3`: the number of devices, then settings in any
// order. README.md has the table.
struct Settings {
  int devices = 0;
  // Of each device, in bytes; 16 GiB, or what the device has whose time is kept.
  size_t memory = 0;
  // The longest random delay of an entry of a stream, in seconds; and what is drawn from.
  double delay = 0;
  uint64_t seed = 1;
  // What a copy over a link (between devices, or to and from the host) takes at least, in
  // seconds, and bytes a second (0: as fast as the host copies).
  double latency = 0;
  double bandwidth = 0;
  // Whether devices reach each other's memory.
  bool peers = true;
  // Whether memory is overwritten before it is handed out again.
  bool poison = true;
  // Whether what is submitted is checked (see checks/).
  bool checks = true;
  // The host waits for every entry: for finding which one fails.
  bool blocking = false;
  // Prints at the end what ran how often.
  bool counts = false;
  // What fails (see faults.h).
  std::vector<Fault> faults;
  // The model of the device whose time is kept: kernels compute nothing, and there are no
  // delays and no checks. Empty: they compute (see timing/).
  std::string time;
  // With `time`: the file that at the end says what ran when.
  std::string trace;
};

// Throws std::invalid_argument with what is wrong where.
Settings parse(const std::string& text);

// Those of this process. None of what is wrong in the text is an exception here: there are
// no devices then, and `settings_error` says why.
const Settings& settings();
const std::string& settings_error();

}  // namespace sim
