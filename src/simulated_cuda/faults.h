// Failures: of a device that reads beyond its memory, and those that are asked for.
#pragma once

#include "stream.h"

namespace sim::faults {

// What can be asked to fail, counted by device.
enum class Kind {
  // A request to the caching allocator of device memory, which then finds no room.
  allocation,
  // A cudaMalloc of that allocator, which then looks for room once more.
  segment,
  // A request for page-locked memory.
  page_locked,
  // A copy that leaves its device: the call that asks for it fails, and nothing else.
  copy,
  // The same while it is under way: the device is lost.
  transfer,
  // A kernel, or a graph: the device is lost.
  kernel,
  // A kernel, or a graph, that never ends.
  stall,
};

// Counts one more; whether it is the one that shall fail.
bool hits(Kind kind, int device);
// Counts an entry that is about to be submitted, and has it fail where that is asked for.
void submitted(Stream& stream, Entry& entry);

// Runs an entry on its stream's thread. An exception is what a failed kernel is on a GPU:
// nobody hears of it before the host asks the device next, and the device is lost from then
// on: it runs nothing any more.
void run(Stream& stream, Entry& entry);

// Every call on a device that is lost says so, in libtorch's words.
void throw_if_lost(int device);

}  // namespace sim::faults
