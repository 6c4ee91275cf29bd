// Errors in CUDA's and libtorch's words.
#pragma once

#include <string>

namespace sim {

// The results of CUDA's calls that are told apart.
enum class Error { invalid_value = 1, out_of_memory = 2, device_assert = 710, captured_event = 907 };

// What libtorch throws when a call of CUDA gives an error (C10_CUDA_CHECK).
[[noreturn]] void throw_cuda_error(Error error);

}  // namespace sim
