// Timeline of a run, for plotting.
#pragma once

#include "../stream.h"

namespace sim::timing {

// If `trace=` is set, records an entry that takes `seconds` from `begin` on.
void trace(const Entry& entry, int device, double begin, double seconds);

}  // namespace sim::timing
