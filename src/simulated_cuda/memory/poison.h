// Memory is overwritten before it is handed out again: what is read without being written
// is 0xFF, which is no number.
//
// When that happens decides between proof and false alarm. Not when memory is given back: no
// GPU writes anything then, and what its stream still reads is right. Whoever takes memory
// on a stream may get any of what was given back there before, and write into it with the
// next that the stream computes. So that overwrites all of it (`Stream::submit_late`).
#pragma once

#include "block.h"

namespace sim::memory {

// A block was given back, and nobody uses it any more.
void given_back(const Block& block);
// A block is about to be handed out.
void overwrite_before(Block& block);
// A segment goes back to the driver.
void forget(BlockPool& pool, const Block& segment);

}  // namespace sim::memory
