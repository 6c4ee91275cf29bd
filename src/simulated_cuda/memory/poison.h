// Overwrites memory before it is handed out again: reading unwritten memory gives 0xFF bytes, which
// is NaN.
//
// The time matters, or there are false alarms. Not when memory is freed: no GPU writes anything
// then, and its stream may still read correctly. A request on a stream may get any memory freed
// there before, and the stream's next entry may write to it. So that entry overwrites all of it
// first (`Stream::submit_late`).
#pragma once

#include "block.h"

namespace sim::memory {

// A block was freed, and nothing uses it any more.
void given_back(const Block& block);
// A block is about to be handed out.
void overwrite_before(Block& block);
// A segment returns to the driver.
void forget(BlockPool& pool, const Block& segment);

}  // namespace sim::memory
