// The caching allocator of device memory, compared with libtorch's.
#include "test.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <dlfcn.h>
#include <memory>

using namespace test;

namespace {

constexpr int64_t kMiB = int64_t(1) << 20;

c10::DeviceAllocator* allocator() { return c10::getDeviceAllocator(c10::kCUDA); }
auto stats(int device = 0) { return allocator()->getDeviceStats(static_cast<c10::DeviceIndex>(device)); }
at::Tensor of(int64_t bytes, int device = 0) { return at::empty({bytes}, on(device).dtype(at::kByte)); }

void equal(int64_t found, int64_t expected, const std::string& what) {
  that(found == expected, what + ": " + std::to_string(found) + ", not " + std::to_string(expected));
}

void fail(const char* what, uint64_t number) {
  auto* found = reinterpret_cast<int (*)(const char*, int, uint64_t, uint64_t)>(dlsym(RTLD_DEFAULT, "sim_fail"));
  that(found != nullptr && found(what, -1, number, 1) == 1, "nothing to fail");
}

}  // namespace

TEST(segments_are_as_large_as_their_requests_say) {
  const auto small = of(1);
  equal(stats().reserved_bytes[0].current, 2 * kMiB, "of a small one");
  const auto middle = of(kMiB + 1);
  equal(stats().reserved_bytes[0].current, 22 * kMiB, "of a middle one");
  const auto large = of(23 * kMiB + 1);
  equal(stats().reserved_bytes[0].current, 46 * kMiB, "of a large one");
  // The remainder of the last is at most 1 MiB: it is not split.
  equal(stats().allocated_bytes[0].current, 512 + kMiB + 512 + 24 * kMiB, "allocated");
  equal(stats().segment[0].current, 3, "segments");
}

TEST(the_smallest_block_that_is_large_enough_is_cut_and_joined_again) {
  auto one = of(2 * kMiB), two = of(4 * kMiB), three = of(2 * kMiB);
  const auto* hole = two.const_data_ptr();
  two.reset();
  equal(stats().inactive_split[0].current, 2, "a hole and the rest");
  auto again = of(3 * kMiB);
  that(again.const_data_ptr() == hole, "the rest was taken and not the hole");
  // The remainder of the hole is at most 1 MiB: it was not split.
  equal(stats().allocated_bytes[0].current, 8 * kMiB, "allocated");
  one.reset();
  again.reset();
  three.reset();
  equal(stats().inactive_split[0].current, 0, "pieces of a whole segment");
  equal(stats().reserved_bytes[0].current, 20 * kMiB, "kept");
  allocator()->emptyCache();
  equal(stats().reserved_bytes[0].current, 0, "given back");
}

TEST(a_block_that_another_stream_uses_waits_for_it) {
  const auto side = new_stream();
  auto block = of(4 * kMiB);
  const auto* address = block.const_data_ptr();
  auto held = std::make_unique<Held>(side);
  block.record_stream(side);
  block.reset();
  that(of(4 * kMiB).const_data_ptr() != address, "it was handed out while it was used");
  held.reset();
  guard().synchronizeStream(side);
  const auto other = of(4 * kMiB);
  that(of(4 * kMiB).const_data_ptr() == address || other.const_data_ptr() == address, "it never came back");
}

TEST_UNDER(what_is_cached_makes_room, "memory=40MiB") {
  auto held = of(18 * kMiB);
  of(11 * kMiB).reset();
  const auto more = of(20 * kMiB);
  equal(stats().num_alloc_retries, 1, "retries");
  equal(stats().num_ooms, 0, "errors");
  refused([] { of(30 * kMiB); }, "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 40.00 MiB");
  refused([] { of(30 * kMiB); }, "38.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch");
  equal(stats().num_ooms, 2, "errors");
}

TEST(an_allocation_fails_when_it_is_asked_to) {
  const auto before = of(1);
  fail("allocation", 2);
  const auto one = of(1);
  refused([] { of(1); }, "CUDA out of memory. Tried to allocate 2.00 MiB");
  const auto two = of(1);
  // The allocator looks for room once more.
  fail("segment", 1);
  const auto large = of(32 * kMiB);
  equal(stats().num_alloc_retries, 2, "retries");
}

TEST(page_locked_memory_is_known_at_every_address) {
  const auto locked = at::empty({1000}, at::TensorOptions().pinned_memory(true));
  that(locked.is_pinned() && locked.narrow(0, 500, 10).is_pinned(), "not known");
  that(!at::empty({1000}).is_pinned(), "known, and is not");
  fail("page-locked", 1);
  refused([] { at::empty({1000}, at::TensorOptions().pinned_memory(true)); }, "CUDA error: out of memory");
}

// After the last address it once handed out another owner's memory.
TEST(page_locked_memory_comes_to_an_end) {
  const auto of_tib = [](int64_t tib) { return at::empty({tib << 40}, at::TensorOptions(at::kByte).pinned_memory(true)); };
  refused([&] { of_tib(16); }, "CUDA error: out of memory");
  that(at::empty({1000}, at::TensorOptions().pinned_memory(true)).is_pinned(), "none is left");
}

TEST(a_lost_device_answers_with_its_error_and_others_work) {
  const auto there = at::ones({8}, on(0)), other = at::ones({8}, on(1));
  const auto end = std::make_unique<Point>(current(0));
  fail("kernel", 1);
  const auto failed = there + 1;
  refused([] { guard().synchronizeDevice(0); }, "CUDA error: device-side assert triggered");
  refused([&] { end->event.query(); }, "device-side assert");
  refused([&] { end->event.synchronize(); }, "device-side assert");
  refused([&] { there + 1; }, "device-side assert");
  refused([] { of(64 * kMiB); }, "device-side assert");
  that((other + 1).sum().item<float>() == 16, "the other device is lost too");
}
