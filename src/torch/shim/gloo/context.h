// Stand-ins for gloo's headers, which the libtorch wheel lacks: the implementation of
// `ProcessGroupGloo` is in libtorch_cpu, and its header names these types only behind
// pointers. So nothing here has a layout, and nothing may be made, copied or called but what
// is declared here and defined in libtorch. `world.cpp` checks the size of the class.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
