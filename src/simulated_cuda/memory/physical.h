// What the driver hands out of a device's memory: cudaMalloc and cudaFree.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace sim::memory {

class Physical {
 public:
  explicit Physical(int device) : device(device) {}

  // Null: the device is full. Throws where the device is lost.
  char* take(size_t size);
  // cudaFree waits for all that the device has to do: the first half of it, and the second.
  void wait() const;
  void give_back(char* address);

  size_t total() const;
  size_t free();

 private:
  char* place(size_t size);

  const int device;
  std::mutex mutex;
  // By address: ranges that are handed out, and those between them that are free.
  std::map<char*, size_t> taken;
  std::map<char*, size_t> gaps;
  size_t used = 0;
  size_t top = 0;
};

// One for each device.
Physical& physical(int device);

}  // namespace sim::memory
