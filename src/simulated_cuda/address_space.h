// Device memory: addresses that the host can neither read nor write, and where the bytes
// really are.
#pragma once

#include <cstddef>

namespace sim {

// The addresses of a device; the allocator takes from their beginning.
constexpr size_t kAddresses = size_t(1) << 38;
char* device_base(int device);
// The device that an address belongs to; -1: it is memory of the host.
int device_of(const void* address);
// New page-locked memory of the host, in whole pages; null where there is no address left.
char* page_locked_room(size_t size);
// Its bytes go back to the system; its addresses are not used again.
void release_page_locked(void* address, size_t size);
bool is_page_locked(const void* address);
// Where the bytes are. Those of page-locked memory are there also while the host may not touch
// them (see checks/locked.cpp).
void* bytes_of(const void* address);

}  // namespace sim
