// CUDA devices on which a kernel has failed: they answer every call with an error from then on.
#include "cuda_allocator.h"
#include "shim.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>

namespace {

// The thread's current work for a stage, for the message of an error in a destructor: an action, or
// without a micro-batch work before, after and between the steps.
thread_local int stage = -1;
thread_local int micro_batch = -1;
thread_local const char* action = nullptr;

std::terminate_handler before = nullptr;

// Freeing memory that several streams have used queries the device. If that query is the first
// to get the error (or runs while an earlier exception unwinds), it throws in a destructor: the
// exception cannot be caught, but it can be printed.
[[noreturn]] void end() {
  std::string error;
  try {
    if (auto thrown = std::current_exception()) {
      std::rethrow_exception(thrown);
    }
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  } catch (...) {
  }
  if (error.find("CUDA error:") == std::string::npos) {
    (before == nullptr ? std::abort : before)();
    std::abort();
  }
  if (action == nullptr) {
    std::fprintf(stderr, "what the caller does, or a stage between two actions: ");
  } else if (micro_batch < 0) {
    std::fprintf(stderr, "stage %d, %s: ", stage, action);
  } else {
    std::fprintf(stderr, "stage %d, micro-batch %d, %s: ", stage, micro_batch, action);
  }
  std::fprintf(stderr,
               "%s\na device failed and answers nothing any more, found out when memory was freed: the "
               "process ends, start it anew (what caused it may have been told to the device before)\n",
               error.c_str());
  std::_Exit(1);
}

}  // namespace

// Makes a CUDA error in a destructor end the process with a message; for the whole process.
GP_API void gp_tell_ends() {
  static const bool once = [] {
    before = std::set_terminate(end);
    return true;
  }();
  static_cast<void>(once);
}

// Sets this thread's current work; null: none for a stage. A micro-batch below 0: none. The name
// must live forever.
GP_API void gp_acts(int of_stage, int of_micro_batch, const char* name) {
  stage = of_stage;
  micro_batch = of_micro_batch;
  action = name;
}

// When memory is freed that several streams have used, the allocator queries the device, which
// fails on a lost device. During a capture the allocator defers such queries: so it is told,
// permanently, that a capture is in progress.
GP_API int gp_cuda_abandon(int index) {
  return gpipe::guarded([&] {
    const c10::MempoolId_t nobody(0, std::numeric_limits<c10::CaptureId_t>::max());
    gpipe::cuda_allocator()->beginAllocateToPool(static_cast<c10::DeviceIndex>(index), nobody,
                                                 [](void*) { return false; });
  });
}
