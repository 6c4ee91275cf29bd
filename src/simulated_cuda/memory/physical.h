// The driver's allocations of a device's memory: cudaMalloc and cudaFree.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace sim::memory {

class Physical {
 public:
  explicit Physical(int device) : device(device) {}

  // Null: the device is full. Throws if the device is lost.
  char* take(size_t size);
  // cudaFree in two halves: wait for all work of the device, then free.
  void wait() const;
  void give_back(char* address);

  size_t total() const;
  size_t free();

 private:
  char* place(size_t size);

  const int device;
  std::mutex mutex;
  // By address: ranges in use, and free ones between them.
  std::map<char*, size_t> taken;
  std::map<char*, size_t> gaps;
  size_t used = 0;
  size_t top = 0;
};

// One for each device.
Physical& physical(int device);

}  // namespace sim::memory
