// Errors with CUDA's and libtorch's texts.
#pragma once

#include <string>

namespace sim {

// Result codes of CUDA calls that are distinguished.
enum class Error { invalid_value = 1, out_of_memory = 2, device_assert = 710, captured_event = 907 };

// Throws as libtorch does when a CUDA call fails (C10_CUDA_CHECK).
[[noreturn]] void throw_cuda_error(Error error);

}  // namespace sim
