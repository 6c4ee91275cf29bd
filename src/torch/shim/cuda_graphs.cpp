// CUDA graphs: a stream's work, captured once and then submitted to the device as one piece.
//
// libtorch's own `at::cuda::CUDAGraph` is used, since the memory of a graph must come from a
// private pool of the caching allocator. Its header needs CUDA's, and nothing links against
// libtorch_cuda: its functions are looked up by name at run time, and the object lives in a
// sufficiently large buffer.
#include "cuda_allocator.h"
#include "shim.h"

#include <ATen/core/CachingHostAllocator.h>

#include <dlfcn.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace {

using c10::MempoolId_t;

// cudaStreamCaptureModeThreadLocal: what other threads ask of the device meanwhile does
// not break the capture. Stages on one device have a thread each.
constexpr int THREAD_LOCAL_MODE = 1;

// `at::cuda::CUDAGraph` of libtorch 2.11 has fewer than 200 bytes.
constexpr size_t ROOM = 1024;

template <typename Function>
void find(Function*& function, const char* name) {
  auto* found = dlsym(RTLD_DEFAULT, name);
  TORCH_CHECK(found != nullptr, "this libtorch has no CUDA graphs (libtorch_cuda is not loaded, or is not "
              "of version 2.11: there is no ", name, ")");
  function = reinterpret_cast<Function*>(found);
}

// Member functions take the object as their first argument.
struct Functions {
  void (*construct)(void*, bool);
  void (*destroy)(void*);
  void (*begin)(void*, MempoolId_t, int);
  void (*end)(void*);
  void (*replay)(void*);
  MempoolId_t (*pool)();

  Functions() {
    find(construct, "_ZN2at4cuda9CUDAGraphC1Eb");
    find(destroy, "_ZN2at4cuda9CUDAGraphD1Ev");
    find(begin, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
    find(end, "_ZN2at4cuda9CUDAGraph11capture_endEv");
    find(replay, "_ZN2at4cuda9CUDAGraph6replayEv");
    find(pool, "_ZN2at4cuda17graph_pool_handleEv");
  }
};

const Functions& functions() {
  // If it throws, the next call tries again.
  static const Functions all;
  return all;
}

// A capture that failed has libtorch leave the allocators of device and page-locked
// memory in it: the stream's memory would be taken from the pool, and what several
// streams have used never be given back. Where the capture never was in it, or has left
// it already, the calls say so, and that is all right.
void leave(c10::DeviceIndex device, MempoolId_t pool) {
  gpipe::guarded([&] {
    auto* allocator = gpipe::cuda_allocator();
    allocator->endAllocateToPool(device, pool);
    allocator->releasePool(device, pool);
  });
  gpipe::guarded([&] {
    auto* host = at::getHostAllocator(c10::DeviceType::CUDA);
    host->end_allocate_to_pool(pool);
    host->release_pool(pool);
  });
}

struct CudaGraph {
  CudaGraph(c10::DeviceIndex device, MempoolId_t pool) : device(device), pool(pool) {
    functions().construct(memory, /*keep_graph=*/false);
  }
  ~CudaGraph() { functions().destroy(memory); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Runs `body`; if it throws, leaves the capture's memory pool.
  template <typename Body>
  void capturing(Body&& body) {
    try {
      body();
    } catch (...) {
      leave(device, pool);
      throw;
    }
  }

  alignas(std::max_align_t) unsigned char memory[ROOM] = {};
  c10::DeviceIndex device;
  MempoolId_t pool;
};

// libtorch's warning about an operator that makes the host wait, if enabled.
constexpr auto WAITED = "called a synchronizing CUDA operation";

// Detects operators for which the host waits (host syncs), on the thread that made it: warnings
// of the autograd engine's own threads are passed on to the thread that called the engine.
struct HostSyncDetector : public c10::WarningHandler {
  HostSyncDetector() {
    mode = static_cast<int*>(dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
    TORCH_CHECK(mode != nullptr, "libc10_cuda is not loaded, or has no switch for waits of the host");
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (detectors++ == 0 && *mode == 0) {
        *mode = 1;
      }
    }
    outer = c10::WarningUtils::get_warning_handler();
    c10::WarningUtils::set_warning_handler(this);
  }
  ~HostSyncDetector() override {
    c10::WarningUtils::set_warning_handler(outer);
    std::lock_guard<std::mutex> lock(mutex);
    if (--detectors == 0 && *mode == 1) {
      *mode = 0;
    }
  }

  void process(const c10::Warning& warning) override {
    if (warning.msg().find(WAITED) != std::string::npos) {
      detected = true;
    } else {
      outer->process(warning);
    }
  }

  // The switch is one for the whole process.
  static std::mutex mutex;
  static int detectors;

  int* mode;
  c10::WarningHandler* outer;
  bool detected = false;
};

std::mutex HostSyncDetector::mutex;
int HostSyncDetector::detectors = 0;

}  // namespace

// Checks that this libtorch has CUDA graphs.
GP_API int gp_cuda_graphs() {
  return gpipe::guarded([&] { functions(); });
}

// A pool of memory for graphs that are replayed in the order of their capture.
GP_API int gp_cuda_graph_pool(uint64_t* first, uint64_t* second) {
  return gpipe::guarded([&] {
    auto pool = functions().pool();
    *first = pool.first;
    *second = pool.second;
  });
}

// Begins a capture: work that the calling thread submits to its current stream is recorded instead
// of run.
GP_API int gp_cuda_graph_begin(int device, uint64_t first, uint64_t second, CudaGraph** out) {
  return gpipe::guarded([&] {
    auto graph = std::make_unique<CudaGraph>(static_cast<c10::DeviceIndex>(device),
                                             MempoolId_t(first, second));
    graph->capturing([&] { functions().begin(graph->memory, graph->pool, THREAD_LOCAL_MODE); });
    *out = graph.release();
  });
}

// After a failed capture, libtorch's default generator believes to be in a capture until one ends
// well, and refuses to draw meanwhile: so an empty capture is made to end well. Its warning is
// expected.
static void end_well(c10::DeviceIndex device) {
  struct Deaf : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } deaf;
  c10::WarningUtils::WarningHandlerGuard quiet(&deaf);
  gpipe::guarded([&] {
    CudaGraph empty(device, functions().pool());
    empty.capturing([&] {
      functions().begin(empty.memory, empty.pool, THREAD_LOCAL_MODE);
      functions().end(empty.memory);
    });
  });
}

// Ends the capture, on the same thread and stream. On success the graph can be replayed; otherwise
// the stream still runs its later work.
GP_API int gp_cuda_graph_end(CudaGraph* graph) {
  return gpipe::guarded([&] {
    try {
      graph->capturing([&] { functions().end(graph->memory); });
    } catch (...) {
      end_well(graph->device);
      throw;
    }
  });
}

// Submits the graph to the calling thread's current stream.
GP_API int gp_cuda_graph_replay(CudaGraph* graph) {
  return gpipe::guarded([&] { functions().replay(graph->memory); });
}

GP_API void gp_cuda_graph_free(CudaGraph* graph) {
  gpipe::guarded([&] { delete graph; });
}

// Begins to detect operators for which the host waits.
GP_API int gp_host_sync_detect(HostSyncDetector** out) {
  return gpipe::guarded([&] { *out = new HostSyncDetector(); });
}

// Returns whether there was a host sync; ends the detection, on the same thread.
GP_API int gp_host_sync_detected(HostSyncDetector* detector) {
  std::unique_ptr<HostSyncDetector> own(detector);
  return own->detected ? 1 : 0;
}
