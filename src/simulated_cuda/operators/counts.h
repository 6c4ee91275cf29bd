// Counts of submitted operators, with and without a wait of the host.
#pragma once

#include <string>

namespace sim {

void count(const std::string& what, bool waits);

}  // namespace sim
