// Device memory: addresses that the host can neither read nor write, and the actual place of the
// bytes.
#pragma once

#include <cstddef>

namespace sim {

// The addresses of a device; the allocator takes from their beginning.
constexpr size_t kAddresses = size_t(1) << 38;
char* device_base(int device);
// The device that an address belongs to; -1: host memory.
int device_of(const void* address);
// New page-locked host memory, in whole pages; null if no address is left.
char* page_locked_room(size_t size);
// Returns the bytes to the system; the addresses are not used again.
void release_page_locked(void* address, size_t size);
bool is_page_locked(const void* address);
// The actual place of the bytes. For page-locked memory it is accessible even while the host may
// not touch the memory (see checks/locked.cpp).
void* bytes_of(const void* address);

}  // namespace sim
