// What tests ask about the transfers of the simulated NCCL (nccl/), and of it. They find functions of
// this library only.
#pragma once

#include <atomic>
#include <cstdint>

namespace sim::transfers {

struct Counts {
  // Transfers that have come to their end, on either side.
  std::atomic<uint64_t> done{0};
  // Transfers that an abort has freed while they waited for the other rank.
  std::atomic<uint64_t> freed{0};
  // The so-manieth from now on fails in the background; 0: none.
  std::atomic<uint64_t> fails{0};
};

Counts& counts();
// Counts one more down; whether it is the one that shall fail.
bool fails();

}  // namespace sim::transfers
