#include "transfers.h"

namespace sim::transfers {

Counts& counts() {
  static auto* own = new Counts();
  return *own;
}

bool fails() {
  auto left = counts().fails.load();
  while (left > 0 && !counts().fails.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

}  // namespace sim::transfers

#define API extern "C" __attribute__((visibility("default")))

API uint64_t sim_transfers_done() { return sim::transfers::counts().done; }
API uint64_t sim_transfers_freed() { return sim::transfers::counts().freed; }
API void sim_transfers_fail(uint64_t number) { sim::transfers::counts().fails = number; }
