// libtorch's switch for operators that make the host wait.
#pragma once

namespace sim {

// "called a synchronizing CUDA operation": nothing, a warning or an error, depending on the switch.
void host_waits();

}  // namespace sim
