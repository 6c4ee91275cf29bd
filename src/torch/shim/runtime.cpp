// Process and thread settings, devices, random generators.
#include "shim.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <dlfcn.h>

#include <mutex>

std::string& gpipe::last_error() {
  static thread_local std::string message;
  return message;
}

namespace {

c10::Device device_of(int type, int index) {
  return type == 0 ? c10::Device(c10::kCPU)
                   : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

at::Generator default_generator(int type, int index) {
  return at::globalContext().defaultGenerator(device_of(type, index));
}

}  // namespace

// The message of this thread's last failed call; valid until the next one.
GP_API const char* gp_error() { return gpipe::last_error().c_str(); }

GP_API const char* gp_version() { return TORCH_VERSION; }

// Intra-op threads of the calling thread.
GP_API int gp_set_threads(int count) {
  return gpipe::guarded([&] { at::set_num_threads(count); });
}

GP_API int gp_threads(int* out) {
  return gpipe::guarded([&] { *out = at::get_num_threads(); });
}

// Loads libtorch_cuda, which nothing links against, so that a machine without
// the CUDA libraries can run everything else. Must come before libtorch first
// asks whether CUDA is there: it remembers the answer.
GP_API int gp_load_cuda(const char* path) {
  return gpipe::guarded([&] {
    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* why = dlerror();
      TORCH_CHECK(false, why == nullptr ? "cannot load libtorch_cuda" : why);
    }
  });
}

GP_API int gp_cuda_devices(int* out) {
  return gpipe::guarded([&] {
    *out = at::globalContext().hasCUDA()
        ? static_cast<int>(c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount())
        : 0;
  });
}

// Makes `index` the calling thread's current CUDA device.
GP_API int gp_set_cuda_device(int index) {
  return gpipe::guarded(
      [&] { c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device_of(1, index)); });
}

GP_API int gp_generator_new(int type, int index, uint64_t seed, at::Generator** out) {
  return gpipe::guarded([&] {
    if (type == 0) {
      *out = new at::Generator(at::make_generator<at::CPUGeneratorImpl>(seed));
      return;
    }
    auto generator = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA).getNewGenerator(
        static_cast<c10::DeviceIndex>(index));
    generator.set_current_seed(seed);
    *out = new at::Generator(std::move(generator));
  });
}

GP_API void gp_generator_free(at::Generator* generator) {
  gpipe::guarded([&] { delete generator; });
}

// A tensor of the shape, type and device of `like`, each element one with
// probability `p` and zero otherwise.
GP_API int gp_bernoulli(const at::Tensor* like, double p, at::Generator* generator, at::Tensor** out) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    auto mask = at::empty_like(*like);
    mask.bernoulli_(p, *generator);
    *out = new at::Tensor(std::move(mask));
  });
}

// State of a device's default generator, so that code which draws from it can
// be run between a save and a restore.
GP_API int gp_default_generator_state(int type, int index, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto generator = default_generator(type, index);
    std::lock_guard<std::mutex> lock(generator.mutex());
    *out = new at::Tensor(generator.get_state());
  });
}

GP_API int gp_set_default_generator_state(int type, int index, const at::Tensor* state) {
  return gpipe::guarded([&] {
    auto generator = default_generator(type, index);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

GP_API int gp_seed_default_generator(int type, int index, uint64_t seed) {
  return gpipe::guarded([&] {
    auto generator = default_generator(type, index);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  });
}
