// The caching allocator of CUDA devices as it is called here: what its own header says
// needs CUDA's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <functional>

namespace gpipe {

// The first virtual functions of `c10::cuda::CUDACachingAllocator::CUDAAllocator` in libtorch 2.11,
// in order (a test compares them with its header): they are called by their position in the class.
// Argument and return types are right only for the functions that are called: the limit, and the
// pools.
//
// Not in an unnamed namespace: the compiler would see that nothing there implements the class, and
// make each call end the process instead (`__cxa_pure_virtual`; a test looks for it in the compiled
// code).
struct CudaAllocator : c10::DeviceAllocator {
  virtual void* raw_alloc(size_t) = 0;
  virtual void* raw_alloc_with_stream(size_t, void*) = 0;
  virtual void raw_delete(void*) = 0;
  virtual void init(int) = 0;
  virtual double getMemoryFraction(c10::DeviceIndex) = 0;
  virtual void setMemoryFraction(double, c10::DeviceIndex) = 0;
  virtual void getExpandableSegmentSizes(c10::DeviceIndex) = 0;
  virtual void enable(bool) = 0;
  virtual bool isEnabled() const = 0;
  virtual void cacheInfo(c10::DeviceIndex, size_t*) = 0;
  virtual void* getBaseAllocation(void*, size_t*) = 0;
  // libtorch's function has the base's name with another stream type: a separate function.
  virtual void recordCudaStream(const c10::DataPtr&, void*) = 0;
  virtual void snapshot(c10::MempoolId_t, bool) = 0;
  virtual void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                                   std::function<bool(void*)>) = 0;
  virtual void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) = 0;
  virtual void releasePool(c10::DeviceIndex, c10::MempoolId_t) = 0;
};

// libtorch_cuda must be loaded.
inline CudaAllocator* cuda_allocator() {
  return static_cast<CudaAllocator*>(c10::getDeviceAllocator(c10::DeviceType::CUDA));
}

}  // namespace gpipe
