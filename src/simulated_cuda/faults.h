// Failures: of a device that reads beyond its memory, and requested ones.
#pragma once

#include "stream.h"

namespace sim::faults {

// Operations that can be made to fail, counted by device.
enum class Kind {
  // A request to the caching allocator of device memory, which then finds no room.
  allocation,
  // A cudaMalloc of that allocator, which then tries once more to find room.
  segment,
  // A request for page-locked memory.
  page_locked,
  // A copy from a device: only the call that asks for it fails.
  copy,
  // A copy from a device fails while in progress: the device is lost.
  transfer,
  // A kernel, or a graph: the device is lost.
  kernel,
  // A kernel, or a graph, that never ends.
  stall,
};

// Counts an operation; returns whether it is the one to fail.
bool hits(Kind kind, int device);
// Counts an entry that is about to be submitted, and makes it fail if requested.
void submitted(Stream& stream, Entry& entry);

// Runs an entry on its stream's thread. An exception acts as a failed kernel on a GPU: it goes
// unnoticed until the host's next call, and the device is lost from then on and runs nothing any
// more.
void run(Stream& stream, Entry& entry);

// Throws libtorch's error if the device is lost, as every call on it does.
void throw_if_lost(int device);

}  // namespace sim::faults
