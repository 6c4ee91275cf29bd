#include "simulated.h"
#include "shim.h"

#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace {

constexpr auto kSettings = "GPIPE_SIMULATE_GPUS";
constexpr auto kPath = "GPIPE_SIMULATED_CUDA";
constexpr auto kLibrary = "simulated-cuda/libgpipe_simulated_cuda.so";

bool is_set(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0;
}

}  // namespace

bool gpipe::simulates_gpus() { return is_set(kSettings); }

std::string gpipe::simulated_cuda() {
  if (is_set(kPath)) {
    return std::getenv(kPath);
  }
  std::error_code none;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", none);
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    if (const auto path = folder / kLibrary; std::filesystem::exists(path, none)) {
      return path.string();
    }
  }
  return {};
}

void* gpipe::load_simulated_cuda() {
  const auto path = simulated_cuda();
  TORCH_CHECK(!path.empty(), "simulated GPUs are asked for (", kSettings, ") and not built: a wheel or an archive has "
              "none; run `make simulated-gpus` in a clone of gpipe-rs, and have ", kPath, " name the library where the "
              "program is elsewhere");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const char* why = library == nullptr ? dlerror() : nullptr;
  TORCH_CHECK(library != nullptr, "the simulated GPUs cannot be loaded: ", why == nullptr ? path : why);
  auto* error = reinterpret_cast<const char* (*)()>(dlsym(library, "sim_settings_error"));
  TORCH_CHECK(error != nullptr, path, " has no simulated GPUs");
  TORCH_CHECK(*error() == 0, error());
  return library;
}

// Whether the environment requests simulated GPUs.
GP_API int gp_simulates_gpus() { return gpipe::simulates_gpus() ? 1 : 0; }
