// The caching allocator of device memory.
#pragma once

#include "capture.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <utility>
#include <vector>

namespace sim {

using c10::DeviceIndex;
using Pool = Capture::Pool;

// The virtual functions of c10::cuda::CUDACachingAllocator::CUDAAllocator of libtorch 2.11, in
// order, up to the last that the project calls by position.
struct CudaAllocator : c10::DeviceAllocator {
  virtual void* raw_alloc(size_t) = 0;
  virtual void* raw_alloc_with_stream(size_t, void*) = 0;
  virtual void raw_delete(void*) = 0;
  virtual void init(int) = 0;
  virtual double getMemoryFraction(DeviceIndex) = 0;
  virtual void setMemoryFraction(double, DeviceIndex) = 0;
  virtual std::vector<int> getExpandableSegmentSizes(DeviceIndex) = 0;
  virtual void enable(bool) = 0;
  virtual bool isEnabled() const = 0;
  virtual void cacheInfo(DeviceIndex, size_t*) = 0;
  virtual void* getBaseAllocation(void*, size_t*) = 0;
  virtual void recordCudaStream(const c10::DataPtr&, void*) = 0;
  virtual void snapshot(Pool, bool) = 0;
  virtual void beginAllocateToPool(DeviceIndex, Pool, std::function<bool(void*)>) = 0;
  virtual void endAllocateToPool(DeviceIndex, Pool) = 0;
  virtual void releasePool(DeviceIndex, Pool) = 0;
};

CudaAllocator* device_allocator();

}  // namespace sim
