// Process and thread settings, devices.
#include "shim.h"
#include "simulated.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// MKL's switch for the same bits wherever operands lie; weak, since a libtorch may be
// made without MKL.
extern "C" int mkl_serv_cbwr_set(int mode) __attribute__((weak));
extern "C" int mkl_serv_cbwr_get(int which) __attribute__((weak));

namespace {

constexpr int kCbwrAuto = 2;
constexpr int kCbwrAll = ~0;

// Whether the environment sets a mode for MKL.
bool told_mkl() {
  const char* own = getenv("MKL_CBWR");
  return own != nullptr && *own != '\0';
}

// By default, MKL chooses kernels by the operands' addresses modulo 64, so that a product of a
// slice may round differently from that of its copy. It reads the mode once, at first use, and a
// user may call libtorch before anything of this library: hence at load time. It is in this file
// because every other one needs `last_error`, and so the linker keeps it.
__attribute__((constructor)) void have_mkl_ignore_addresses() {
  if (mkl_serv_cbwr_set != nullptr && !told_mkl()) {
    mkl_serv_cbwr_set(kCbwrAuto);
  }
}

}  // namespace

std::string& gpipe::last_error() {
  static thread_local std::string message;
  return message;
}

// The message of this thread's last failed call; valid until the next one.
GP_API const char* gp_error() { return gpipe::last_error().c_str(); }

GP_API const char* gp_version() { return TORCH_VERSION; }

// MKL's mode of conditional numerical reproducibility, -1 where there is no MKL; whether
// the environment has set it.
GP_API int gp_mkl_mode(int* told) {
  *told = told_mkl() ? 1 : 0;
  return mkl_serv_cbwr_get == nullptr ? -1 : mkl_serv_cbwr_get(kCbwrAll);
}

// Intra-op threads of the calling thread. A thread's first use of libtorch sets
// it to whatever any thread has set last; reading the number is such a use, and
// after it the thread's own number stays.
GP_API int gp_set_threads(int count) {
  return gpipe::guarded([&] {
    at::get_num_threads();
    at::set_num_threads(count);
  });
}

GP_API int gp_threads(int* out) {
  return gpipe::guarded([&] { *out = at::get_num_threads(); });
}

// Makes the C library keep freed memory for the next allocation, up to the largest block that it
// keeps at all. A step frees memory that the next one needs again; returning it in between costs a
// page fault for every 4 KiB.
GP_API void gp_keep_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 2047 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

// Makes the process end without destroying objects made before this call: at exit libtorch removes
// each of its thousands of operators from its tables, which takes longer than all other work of a
// short command. The kernel reclaims everything in one go.
GP_API void gp_end_at_once() {
#ifdef __GLIBC__
  on_exit(
      [](int status, void*) {
        fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}

// Makes libtorch request huge pages for host tensors from 2 MiB on: a page fault for every 2 MiB,
// not for every 4 KiB. Blocks larger than the C library keeps are new each time, and their faults
// took longer than their copy to a GPU. Not without GPUs: such tensors are page-aligned, so that
// products of several compete for the same cache lines (4 to 7 % slower). libtorch reads this once,
// at its first tensor.
static void ask_for_huge_pages() { setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0); }

// libtorch checks once whether CUDA is there, and keeps the answer: a seed, a convolution or a
// backward on the CPU makes it check, as does every search for a device. So its CUDA half, which
// nothing links against, is loaded when the program starts if there is a driver (as in every
// program that links against it), or if simulated GPUs are requested, but not if all devices are
// hidden. If loading fails, the error of a search for a device says why.
__attribute__((constructor)) static void load_cuda_at_start() {
  if (gpipe::simulates_gpus()) {
    ask_for_huge_pages();
    dlopen(gpipe::simulated_cuda().c_str(), RTLD_NOW | RTLD_GLOBAL);
    return;
  }
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  const bool hidden = visible != nullptr && (*visible == 0 || strcmp(visible, "-1") == 0);
  if (!hidden && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    ask_for_huge_pages();
    dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  }
}

// Loads libtorch_cuda where it is not loaded yet. Comes too late if libtorch has asked for
// CUDA before.
GP_API int gp_load_cuda(const char* path) {
  return gpipe::guarded([&] {
    if (gpipe::simulates_gpus()) {
      gpipe::load_simulated_cuda();
    } else if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* why = dlerror();
      TORCH_CHECK(false, why == nullptr ? "cannot load libtorch_cuda" : why);
    }
  });
}

// Whether libtorch_cuda is loaded.
GP_API int gp_cuda_loaded() {
  int loaded = 0;
  gpipe::guarded([&] { loaded = at::detail::getCUDAHooks().versionCUDART() > 0 ? 1 : 0; });
  return loaded;
}

// TF32 for matrix products and convolutions, and operators whose results do not change
// from run to run; for the whole process.
GP_API int gp_numbers(int tf32, int deterministic) {
  return gpipe::guarded([&] {
    auto& context = at::globalContext();
    if (deterministic != 0) {
      // Size of cuBLAS's workspace, read at its first use: then several streams may use it with
      // reproducible results.
      setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    }
    context.setAllowTF32CuBLAS(tf32 != 0);
    context.setAllowTF32CuDNN(tf32 != 0);
    context.setDeterministicAlgorithms(deterministic != 0, /*warn_only=*/false);
    // By default all new memory is then filled with NaN first: an extra kernel per tensor.
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(deterministic != 0);
    context.setBenchmarkCuDNN(deterministic == 0 && context.benchmarkCuDNN());
  });
}

// Sets whether an operator that makes the host wait for a CUDA device is an error (for the whole
// process). The switch is a variable of libc10_cuda; its own header needs CUDA's.
GP_API int gp_forbid_waits(int forbid) {
  return gpipe::guarded([&] {
    auto* mode = static_cast<int*>(
        dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
    TORCH_CHECK(mode != nullptr, "libc10_cuda is not loaded, or has no switch for waits of the host");
    *mode = forbid != 0 ? 2 : 0;
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
  return gpipe::guarded([&] {
    c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  });
}

// Makes backwards started by the calling thread run on it, including those of CUDA devices. By
// default one thread of the process runs all backwards of a device: stages on one device would wait
// for each other, and the backward would not see the thread's own state in libtorch (a capture,
// handles of libraries).
GP_API int gp_backward_here() {
  return gpipe::guarded(
      [&] { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); });
}
