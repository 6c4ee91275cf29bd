#include "errors.h"

#include <c10/util/Exception.h>

#include <cstdlib>

namespace sim {

namespace {

struct Words {
  const char* text;
  const char* name;
};

Words words(Error error) {
  switch (error) {
    case Error::invalid_value:
      return {"invalid argument", "cudaErrorInvalidValue"};
    case Error::out_of_memory:
      return {"out of memory", "cudaErrorMemoryAllocation"};
    case Error::device_assert:
      return {"device-side assert triggered", "cudaErrorAssert"};
    case Error::captured_event:
      return {"operation not permitted on an event last recorded in a capturing stream", "cudaErrorCapturedEvent"};
  }
  return {"unknown error", "cudaErrorUnknown"};
}

}  // namespace

// The text is that of c10_cuda_check_implementation.
void throw_cuda_error(Error error) {
  const auto [text, name] = words(error);
  std::string message = std::string("CUDA error: ") + text + "\nSearch for `" + name +
      "' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.";
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking == nullptr || std::string(blocking) != "1") {
    message += "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
               "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1";
  }
  message += "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n";
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, static_cast<int32_t>(error),
                              message);
}

}  // namespace sim
