// Counters and faults of the simulated NCCL's transfers (nccl/), for tests. They find functions of
// this library only.
#pragma once

#include <atomic>
#include <cstdint>

namespace sim::transfers {

struct Counts {
  // Completed transfers, on either side.
  std::atomic<uint64_t> done{0};
  // Transfers freed by an abort while waiting for the other rank.
  std::atomic<uint64_t> freed{0};
  // Which transfer from now on fails in the background; 0: none.
  std::atomic<uint64_t> fails{0};
};

Counts& counts();
// Counts down; returns whether this transfer is the one to fail.
bool fails();

}  // namespace sim::transfers
