// What ran when, for a picture of it.
#pragma once

#include "../stream.h"

namespace sim::timing {

// Where `trace=` asks for it, notes an entry that takes `seconds` from `begin` on.
void trace(const Entry& entry, int device, double begin, double seconds);

}  // namespace sim::timing
