// Counts the bytes of CPU tensors, each on the account of the allocating thread.
//
// The allocator wraps libtorch's own. A block is
//
//     base (libtorch's allocator) ... header (64 bytes) | data: what the tensor sees
//
// and the header identifies its account, which is credited when the block is freed, on any thread.
// Three properties of libtorch determine the details:
//
// 1. `raw_deallocate` (oneDNN's scratch memory) goes to the allocator of the
//    moment, also for blocks from before: our deleter must tell foreign blocks
//    from its own. Data is never at the beginning of a page, so that the
//    64 bytes before a candidate are memory that may be read, and the header
//    carries a mark that depends on its address.
// 2. The context of a data pointer is the data itself: `raw_deleter` promises it,
//    and copy-on-write takes only such pointers (`cow::has_simple_data_ptr`).
// 3. A storage remembers its allocator: later copies by copy-on-write are charged to the
//    writing thread.
//
// Accounts are never freed, only reused once they are retired and empty: a block may outlive
// everything else that refers to its account.
#include "cuda_allocator.h"
#include "shim.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <new>

namespace {

// Bytes; on a separate cache line, since stages count at the same time.
struct alignas(64) Account {
  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
  // The parent account. It outlives the bytes here: they also count there, so that it is not empty.
  // Written only while the account has no bytes: the thread that freed the last ones has read it
  // before (release), and the thread that reuses the account has seen them freed (acquire).
  Account* whole = nullptr;
  // Guarded by the mutex of `Accounts`.
  bool retired = false;

  // Only the sums matter: relaxed.
  void charge(int64_t bytes) noexcept {
    for (auto* account = this; account != nullptr; account = account->whole) {
      const auto now = account->current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      auto seen = account->peak.load(std::memory_order_relaxed);
      while (now > seen &&
             !account->peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
      }
    }
  }
  // Child accounts first: a thread that finds one empty does not touch its parent.
  void give_back(int64_t bytes) noexcept {
    for (auto* account = this; account != nullptr;) {
      auto* next = account->whole;
      account->current.fetch_sub(bytes, std::memory_order_release);
      account = next;
    }
  }
};

struct Accounts {
  std::mutex mutex;
  // Addresses are stable; the first account stands for no account.
  std::deque<Account> all = std::deque<Account>(1);
};

// Leaked on purpose: tensors are freed by destructors that run at exit.
Accounts& accounts() {
  static auto* all = new Accounts();
  return *all;
}

Account* nobody() {
  static Account* account = &accounts().all.front();
  return account;
}

// Null: no account.
thread_local Account* charged = nullptr;

struct Header {
  uintptr_t mark;
  Account* account;
  int64_t bytes;
  void* base;
};

constexpr size_t kAlignment = 64;
// The smallest page there is; larger ones are multiples.
constexpr size_t kPage = 4096;
// Header, alignment, and a step away from the beginning of a page.
constexpr size_t kExtra = 3 * kAlignment;
constexpr uintptr_t kMark = 0x67706970'6d656d31;
static_assert(sizeof(Header) <= kAlignment);

// libtorch's own allocator. Looked up each time instead of remembered at the installation: nothing
// would guarantee that other threads see it in time.
c10::DataPtr plain_allocate(size_t bytes) { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
void plain_release(void* data) { c10::GetDefaultCPUAllocator()->raw_deallocate(data); }

// The header of a block of ours, null for any other pointer.
Header* header_of(const void* data) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % kAlignment != 0 || address % kPage == 0) {
    return nullptr;
  }
  auto* header = reinterpret_cast<Header*>(address - kAlignment);
  return header->mark == (kMark ^ address) ? header : nullptr;
}

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* header = header_of(data);
  if (header == nullptr) {
    plain_release(data);
    return;
  }
  header->account->give_back(header->bytes);
  auto* base = header->base;
  header->mark = 0;
  plain_release(base);
}

void* begin_block(void* base, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(base) + kAlignment;
  address = (address + kAlignment - 1) / kAlignment * kAlignment;
  if (address % kPage == 0) {
    address += kAlignment;
  }
  auto* account = charged == nullptr ? nobody() : charged;
  new (reinterpret_cast<void*>(address - kAlignment))
      Header{kMark ^ address, account, static_cast<int64_t>(bytes), base};
  account->charge(static_cast<int64_t>(bytes));
  return reinterpret_cast<void*>(address);
}

// If there is no room for the header as well, libtorch refuses the plain block too, with an error
// that gives the requested size. If there is room for that, the block is not counted.
void* counted(size_t bytes) {
  void* base = nullptr;
  try {
    base = plain_allocate(bytes + kExtra).release_context();
  } catch (const c10::Error&) {
    return plain_allocate(bytes).release_context();
  }
  return begin_block(base, bytes);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()) - kExtra) {
      return plain_allocate(bytes);  // which refuses, in its own words
    }
    void* data = nullptr;
    if (bytes != 0) {
      data = counted(bytes);
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

CountingAllocator* install() {
  TORCH_CHECK(c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator(),
              "the process has given libtorch a CPU allocator of its own: its bytes cannot be counted");
  auto* counting = new CountingAllocator();
  c10::SetCPUAllocator(counting, /*priority=*/100);
  return counting;
}

}  // namespace

// Counts every block from now on. Never undone: blocks would outlive it.
GP_API int gp_memory_install() {
  return gpipe::guarded([] {
    static auto* counting = install();
    TORCH_CHECK(c10::GetCPUAllocator() == counting,
                "another CPU allocator has taken the place of the counting one");
  });
}

// An account with nothing on it, whose bytes are on `whole` too (null: on no other).
GP_API int gp_account_new(Account* whole, Account** out) {
  return gpipe::guarded([&] {
    auto& [mutex, all] = accounts();
    std::lock_guard<std::mutex> lock(mutex);
    Account* account = nullptr;
    for (auto& old : all) {
      // Nothing can be charged to a retired account, so an empty one stays empty.
      if (old.retired && old.current.load(std::memory_order_acquire) == 0) {
        account = &old;
        break;
      }
    }
    account = account == nullptr ? &all.emplace_back() : account;
    account->peak.store(0, std::memory_order_relaxed);
    account->whole = whole;
    account->retired = false;
    *out = account;
  });
}

// Its owner and all scopes on it are gone; blocks on it may live on.
GP_API void gp_account_retire(Account* account) {
  gpipe::guarded([&] {
    std::lock_guard<std::mutex> lock(accounts().mutex);
    account->retired = true;
  });
}

// Charges this thread's allocations from now on to `account` (null: none); returns the previous
// one.
GP_API Account* gp_account_enter(Account* account) {
  auto* before = charged;
  charged = account;
  return before;
}

GP_API int64_t gp_account_current(const Account* account) {
  return account->current.load(std::memory_order_relaxed);
}

GP_API int64_t gp_account_peak(const Account* account) {
  return account->peak.load(std::memory_order_relaxed);
}

GP_API void gp_account_reset_peak(Account* account) {
  account->peak.store(account->current.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

// Bytes of all blocks on all accounts, including those without one.
GP_API int gp_memory_live(int64_t* out) {
  return gpipe::guarded([&] {
    auto& [mutex, all] = accounts();
    std::lock_guard<std::mutex> lock(mutex);
    *out = 0;
    for (const auto& account : all) {
      if (account.whole != nullptr) {
        continue;
      }
      *out += account.current.load(std::memory_order_relaxed);
    }
  });
}

// Bytes handed out by the caching allocator of a CUDA device: now, and at most since the peak was
// reset.
GP_API int gp_cuda_memory(int index, int64_t* current, int64_t* peak) {
  return gpipe::guarded([&] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    const auto stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    const auto& bytes =
        stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    *current = bytes.current;
    *peak = bytes.peak;
  });
}

GP_API int gp_cuda_reset_peak(int index) {
  return gpipe::guarded([&] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    allocator->resetPeakStats(static_cast<c10::DeviceIndex>(index));
  });
}

// Bytes of a CUDA device that are free, for everybody, and that it has.
GP_API int gp_cuda_room(int index, int64_t* free, int64_t* total) {
  return gpipe::guarded([&] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    const auto info = allocator->getMemoryInfo(static_cast<c10::DeviceIndex>(index));
    *free = static_cast<int64_t>(info.first);
    *total = static_cast<int64_t>(info.second);
  });
}

// The caching allocator refuses to take more than this share of the device's memory.
// libtorch has no other way to the limit: this is what
// `torch.cuda.set_per_process_memory_fraction` calls.
GP_API int gp_cuda_limit(int index, double fraction) {
  return gpipe::guarded([&] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto* allocator = gpipe::cuda_allocator();
    const auto device = static_cast<c10::DeviceIndex>(index);
    allocator->setMemoryFraction(fraction, device);
    const auto set = allocator->getMemoryFraction(device);
    TORCH_CHECK(std::abs(set - fraction) < 1e-9, "the limit of device ", index, " is ", set,
                " of its memory after it was set to ", fraction);
  });
}
