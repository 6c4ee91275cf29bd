// Simulated GPUs (src/simulated_cuda), which take the place of libtorch_cuda and of the
// driver where the environment asks for them.
#pragma once

#include <string>

namespace gpipe {

// Whether `GPIPE_SIMULATE_GPUS` is set.
bool simulates_gpus();

// The library: the one that `GPIPE_SIMULATED_CUDA` names, or `simulated-cuda/` in a folder
// above the program. Empty if there is none.
std::string simulated_cuda();

// The library's handle; an error says how to build it, or which setting is wrong.
void* load_simulated_cuda();

}  // namespace gpipe
