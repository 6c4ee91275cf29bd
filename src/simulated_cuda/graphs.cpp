// `at::cuda::CUDAGraph`, whose functions the project looks up by name.
#include "capture.h"
#include "checks.h"
#include "device_memory.h"
#include "faults.h"
#include "generators.h"
#include "pinned_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <atomic>

// As in CUDA's header: its name is part of the functions' mangled names.
enum cudaStreamCaptureMode { kGlobal, kThreadLocal, kRelaxed };

#define EXPORTED __attribute__((visibility("default")))

namespace at::cuda {

struct EXPORTED CUDAGraph {
  explicit CUDAGraph(bool keep_graph);
  ~CUDAGraph();
  void capture_begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode);
  void capture_end();
  void replay();

  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(capture->origin.device); }

  std::shared_ptr<sim::Capture> capture;
  bool ended = false;
  // End of the last replay, and its stream.
  std::shared_ptr<sim::Point> replayed;
  const sim::Stream* replayed_in = nullptr;
};
EXPORTED c10::MempoolId_t graph_pool_handle();

CUDAGraph::CUDAGraph(bool) {}

CUDAGraph::~CUDAGraph() {
  if (capture) {
    capture->leave();
  }
  if (ended) {
    sim::device_allocator()->releasePool(device(), capture->pool);
    sim::pinned_allocator()->release_pool(capture->pool);
  }
}

void CUDAGraph::capture_begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode) {
  auto& stream = sim::current_stream(sim::current_device());
  TORCH_CHECK(stream.id != 0, "CUDA graphs must be captured on a non-default stream. (However, after capture, "
              "it's ok to replay them on the default stream.)");
  TORCH_CHECK(!stream.capture, "CUDA error: operation not permitted when stream is capturing");
  capture = std::make_shared<sim::Capture>(stream, pool, static_cast<sim::CaptureMode>(mode));
  const auto inside = [own = capture.get()](const sim::Stream& stream) { return stream.capture.get() == own; };
  sim::device_allocator()->beginAllocateToPool(
      device(), pool, [inside](void* handle) { return inside(*static_cast<sim::Stream*>(handle)); });
  sim::pinned_allocator()->begin_allocate_to_pool(
      pool, [inside](c10::Stream own) { return inside(sim::stream(own.device_index(), own.id())); });
  sim::faults::throw_if_lost(stream.device);
  stream.capture = capture;
  sim::checks::capture_began(*capture);
}

void CUDAGraph::capture_end() {
  TORCH_CHECK(capture, "no capture has begun");
  TORCH_CHECK(&sim::current_stream(sim::current_device()) == &capture->origin,
              "Capture must end on the same stream it began on.");
  capture->end();  // if this throws, the allocators stay in the capture, as libtorch's do
  sim::device_allocator()->endAllocateToPool(device(), capture->pool);
  sim::pinned_allocator()->end_allocate_to_pool(capture->pool);
  if (!capture->computes) {
    TORCH_WARN("The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
               "device or stream.");
  }
  ended = true;
}

// One replay at a time on all streams, as for a graph on a GPU.
void CUDAGraph::replay() {
  TORCH_CHECK(ended, "Called CUDAGraph::replay without a preceding successful capture.");
  auto& stream = sim::current_stream(sim::current_device());
  if (replayed && replayed_in != &stream) {
    stream.wait(replayed);
  }
  sim::Entry whole;
  whole.what = "graph replay";
  for (const auto& entry : capture->entries) {
    whole.seconds += entry.seconds;
    whole.accesses.insert(whole.accesses.end(), entry.accesses.begin(), entry.accesses.end());
  }
  whole.run = [capture = capture, offset = sim::advance_default_generator(device(), capture->draws)] {
    capture->random_offset = offset;
    for (const auto& entry : capture->entries) {
      entry.run();
    }
  };
  stream.submit(std::move(whole));
  replayed = stream.record();
  replayed_in = &stream;
}

c10::MempoolId_t graph_pool_handle() {
  static std::atomic<unsigned long long> next{1};
  return {0, next++};
}

}  // namespace at::cuda
