#include "address_space.h"

#include "settings.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace sim {

namespace {

// Two ranges of the same size: an inaccessible one, and one for the bytes. Neither takes memory
// before it is written to.
struct Ranges {
  size_t size = kAddresses * size_t(settings().devices);
  char* device = map(PROT_NONE);
  char* host = map(PROT_READ | PROT_WRITE);

  char* map(int protection) const {
    void* at = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      perror("simulated GPUs: no address space");
      abort();
    }
    return static_cast<char*>(at);
  }
};

const Ranges& ranges() {
  static const auto* both = new Ranges();
  return *both;
}

// The same memory mapped twice: for the host and for devices.
struct Locked {
  // No address is handed out twice: a run asks for much more in total than it holds at a time.
  static constexpr size_t size = size_t(1) << 43;
  int file = make();
  char* host = map();
  char* device = map();
  std::atomic<size_t> used{0};

  static int make() {
    const int file = memfd_create("page-locked", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size) != 0) {
      perror("simulated GPUs: no page-locked memory");
      abort();
    }
    return file;
  }
  char* map() const {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) {
      perror("simulated GPUs: no address space");
      abort();
    }
    return static_cast<char*>(at);
  }
};

Locked& locked() {
  static auto* locked = new Locked();
  return *locked;
}

}  // namespace

char* page_locked_room(size_t size) {
  constexpr size_t page = 4096;
  const size_t wanted = (size + page - 1) / page * page;
  size_t used = locked().used.load();
  do {
    if (wanted < size || wanted > Locked::size - used) {
      return nullptr;
    }
  } while (!locked().used.compare_exchange_weak(used, used + wanted));
  return locked().host + used;
}

void release_page_locked(void* address, size_t size) {
  constexpr size_t page = 4096;
  madvise(address, (size + page - 1) / page * page, MADV_REMOVE);
}

bool is_page_locked(const void* address) {
  const auto offset = static_cast<const char*>(address) - locked().host;
  return offset >= 0 && size_t(offset) < Locked::size;
}

char* device_base(int device) { return ranges().device + kAddresses * size_t(device); }

int device_of(const void* address) {
  const auto offset = static_cast<const char*>(address) - ranges().device;
  const bool inside = offset >= 0 && size_t(offset) < ranges().size;
  return inside ? static_cast<int>(size_t(offset) / kAddresses) : -1;
}

void* bytes_of(const void* address) {
  if (is_page_locked(address)) {
    return locked().device + (static_cast<const char*>(address) - locked().host);
  }
  if (address == nullptr || device_of(address) < 0) {
    return const_cast<void*>(address);
  }
  return ranges().host + (static_cast<const char*>(address) - ranges().device);
}

}  // namespace sim
