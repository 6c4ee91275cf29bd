// Stand-ins for gloo's headers, which the libtorch wheel lacks: `ProcessGroupGloo` is implemented
// in libtorch_cpu, and its header names these types only behind pointers. So nothing here has a
// layout, and only functions that are declared here and defined in libtorch may be called.
// `world.cpp` checks the size of the class.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
