// The NVIDIA driver, asked through its own library where there is one. Nothing of CUDA
// is needed to build this: the few functions are looked up by name when it runs.
#include "shim.h"
#include "simulated.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <dlfcn.h>

#include <array>
#include <cstring>

namespace {

// CUresult of cuda.h: 0 is success.
using Status = int;

struct Driver {
  void* library = nullptr;

  template <typename Function>
  Function* find(const char* name) const {
    auto* found = dlsym(library, name);
    TORCH_CHECK(found != nullptr, "the NVIDIA driver has no function ", name);
    return reinterpret_cast<Function*>(found);
  }

  void check(Status status, const char* what) const {
    const char* text = nullptr;
    if (status != 0) {
      find<Status(Status, const char**)>("cuGetErrorString")(status, &text);
    }
    TORCH_CHECK(status == 0, "the NVIDIA driver cannot ", what, ": ",
                text == nullptr ? "no reason given" : text);
  }
};

const Driver& driver() {
  static const Driver loaded = [] {
    Driver driver;
    driver.library = gpipe::simulates_gpus() ? gpipe::load_simulated_cuda()
                                             : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char* why = driver.library == nullptr ? dlerror() : nullptr;
    TORCH_CHECK(driver.library != nullptr, why == nullptr ? "libcuda.so.1 cannot be loaded" : why);
    driver.check(driver.find<Status(unsigned)>("cuInit")(0), "start");
    return driver;
  }();
  return loaded;
}

int device(int index) {
  int handle = 0;
  driver().check(driver().find<Status(int*, int)>("cuDeviceGet")(&handle, index), "find a device");
  return handle;
}

}  // namespace

// The newest CUDA that the driver can run, as 1000 * major + 10 * minor; and the number of devices.
GP_API int gp_driver(int* version, int* devices) {
  return gpipe::guarded([&] {
    const auto& own = driver();
    own.check(own.find<Status(int*)>("cuDriverGetVersion")(version), "tell its version");
    own.check(own.find<Status(int*)>("cuDeviceGetCount")(devices), "count its devices");
  });
}

// A device's name, of at most `room` bytes with the terminating zero, its memory and compute
// capability (major and minor number).
GP_API int gp_driver_device(int index, char* name, int room, uint64_t* bytes, int* major,
                            int* minor) {
  return gpipe::guarded([&] {
    const auto& own = driver();
    const int handle = device(index);
    size_t total = 0;
    own.check(own.find<Status(char*, int, int)>("cuDeviceGetName")(name, room, handle), "name a device");
    own.check(own.find<Status(size_t*, int)>("cuDeviceTotalMem_v2")(&total, handle), "tell a device's memory");
    auto* attribute = own.find<Status(int*, int, int)>("cuDeviceGetAttribute");
    own.check(attribute(major, 75, handle), "tell a device's kind");
    own.check(attribute(minor, 76, handle), "tell a device's kind");
    *bytes = total;
  });
}

// UUID of a device, the same in all processes of the host: 16 bytes.
GP_API int gp_driver_uuid(int index, uint8_t* out) {
  return gpipe::guarded([&] {
    const auto& own = driver();
    own.check(own.find<Status(uint8_t*, int)>("cuDeviceGetUuid_v2")(out, device(index)), "tell a device's id");
  });
}

// Whether one device can access the memory of another directly.
GP_API int gp_driver_peers(int from, int to, int* out) {
  return gpipe::guarded([&] {
    const auto& own = driver();
    auto* ask = own.find<Status(int*, int, int)>("cuDeviceCanAccessPeer");
    own.check(ask(out, device(from), device(to)), "tell whether devices reach each other");
  });
}

// The CUDA that libtorch was made with, as `gp_driver` gives versions; libtorch_cuda must
// be loaded.
GP_API int gp_cuda_version(int* version) {
  return gpipe::guarded(
      [&] { *version = static_cast<int>(at::detail::getCUDAHooks().versionCUDART()); });
}
