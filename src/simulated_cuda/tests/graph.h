// CUDA graphs, as programs use them.
#pragma once

#include <ATen/core/Tensor.h>

// As in libtorch's header; the functions are found by name.
enum cudaStreamCaptureMode { kGlobal, kThreadLocal, kRelaxed };
namespace at::cuda {
struct CUDAGraph {
  explicit CUDAGraph(bool keep_graph);
  ~CUDAGraph();
  void capture_begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode);
  void capture_end();
  void replay();
  alignas(16) char memory[1024];
};
c10::MempoolId_t graph_pool_handle();
}  // namespace at::cuda
