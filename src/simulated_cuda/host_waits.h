// Operators for which the host waits: libtorch's own switch for them.
#pragma once

namespace sim {

// "called a synchronizing CUDA operation": nothing, a warning, or an error, as the switch says.
void host_waits();

}  // namespace sim
