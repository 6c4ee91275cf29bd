// Order within and between streams, events, and copies.
#include "test.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <memory>
#include <set>

using namespace test;

TEST(numbers_are_those_of_the_cpu) {
  at::set_num_threads(1);
  const auto x = at::randn({64, 64});
  const auto compute = [](const at::Tensor& x) { return (at::matmul(x, x).tanh() + x).softmax(1).sum(0); };
  for (int device = 0; device < 4; ++device) {
    that(at::equal(compute(x), compute(x.to(cuda(device))).cpu()), "other bits than the CPU's");
  }
}

TEST(pool_streams_come_round_after_32) {
  std::set<int64_t> ids;
  const auto first = new_stream().id();
  ids.insert(first);
  for (int i = 1; i < 32; ++i) {
    ids.insert(new_stream().id());
  }
  that(ids.size() == 32, "fewer than 32 streams");
  that(new_stream().id() == first, "the 33rd is not the first");
  that(ids.count(0) == 0, "the default stream is none of the pool");
}

TEST(the_default_stream_waits_for_no_stream_of_the_pool) {
  const auto side = new_stream();
  const Held held(side);
  Point behind(side);
  const auto y = at::ones({4}, on(0)) + 1;
  guard().synchronizeStream(current());
  that(!behind.event.query(), "the default stream waited for another");
  that(y.sum().item<float>() == 8, "wrong numbers");
}

TEST(a_stream_that_waits_for_an_event_reads_what_was_written_before) {
  for (int i = 0; i < 20; ++i) {
    const auto side = new_stream();
    const auto x = at::ones({300, 300}, on(0));
    const auto y = at::matmul(x, x) + i;
    Point(current()).event.block(side);
    at::Tensor z;
    {
      Within in(side);
      z = y * 2;
      y.record_stream(side);
    }
    Point(side).event.synchronize();
    that(z.cpu().eq(600.0 + 2 * i).all().item<bool>(), "read too early");
  }
}

TEST(events_keep_the_time_of_their_stream) {
  Point begin(current());
  busy(current());
  auto held = std::make_unique<Held>(current());
  Point end(current());
  that(!end.event.query(), "the host waited for the stream");
  refused([&] { begin.event.elapsedTime(end.event); }, "must be completed");
  held.reset();
  end.event.synchronize();
  that(begin.event.elapsedTime(end.event) > 0.05, "no time has passed");
  c10::Event without(c10::kCUDA, c10::EventFlag::PYTORCH_DEFAULT);
  without.record(current());
  without.synchronize();
  refused([&] { begin.event.elapsedTime(without); }, "enable_timing");
}

TEST(copies_between_devices_come_behind_and_before_what_both_have) {
  for (int i = 0; i < 10; ++i) {
    auto to = at::zeros({200, 200}, on(1));
    busy(current(1));
    to.fill_(-1);  // behind what cuda:1 is busy with
    const auto from = at::full({200, 200}, i, on(0));
    to.copy_(from, /*non_blocking=*/true);
    that(to.add(1).cpu().eq(i + 1.0).all().item<bool>(), "a copy out of order");
  }
}

TEST_UNDER(devices_without_peer_access_copy_as_well, "peers=off") {
  const auto from = at::arange(64, on(0)).view({8, 8}).t();
  that(at::equal(from.cpu(), from.to(cuda(1)).cpu()), "other numbers");
}

TEST(copies_from_memory_that_is_not_page_locked_read_it_before_they_return) {
  auto source = at::ones({1000});
  busy(current());
  const auto copy = source.to(on(0), /*non_blocking=*/true);
  source.fill_(7);
  that(copy.cpu().eq(1).all().item<bool>(), "read too late");
}

TEST(copies_from_page_locked_memory_do_not_make_the_host_wait) {
  const auto source = at::ones({1000}, at::TensorOptions().pinned_memory(true));
  that(source.is_pinned() && source.narrow(0, 3, 4).is_pinned() && !at::ones({4}).is_pinned(), "is_pinned");
  auto held = std::make_unique<Held>(current());
  const auto copy = source.to(on(0), /*non_blocking=*/true);
  Point behind(current());
  that(!behind.event.query(), "the host waited");
  held.reset();
  behind.event.synchronize();
}

TEST(copies_into_memory_that_is_not_page_locked_make_the_host_wait) {
  auto to = at::zeros({1000});
  const auto from = at::ones({1000}, on(0));
  busy(current());
  to.copy_(from + 1, /*non_blocking=*/true);
  that(to.eq(2).all().item<bool>(), "the host did not wait");
}

TEST(tensors_of_two_devices_do_not_meet) {
  const auto a = at::ones({4}, on(0)), b = at::ones({4}, on(1));
  refused([&] { a + b; }, "Expected all tensors to be on the same device");
  refused([&] { a + at::ones({4}); }, "Expected all tensors to be on the same device");
  that((a + at::ones({})).sum().item<float>() == 8, "a number of the host");
}

TEST(sizes_that_depend_on_values_make_the_host_wait) {
  busy(current());
  const auto found = at::nonzero(at::eye(3, on(0)));
  that(found.size(0) == 3 && found.sum().item<int64_t>() == 6, "wrong numbers");
}

TEST(amp_casts_what_cuda_casts) {
  at::autocast::set_autocast_enabled(c10::kCUDA, true);
  at::autocast::set_autocast_dtype(c10::kCUDA, at::kHalf);
  const auto x = at::rand({8, 8}, on(0));
  that(at::matmul(x, x).scalar_type() == at::kHalf, "a product is not in half precision");
  that(at::matmul(x, x).softmax(1).scalar_type() == at::kFloat, "a softmax is not in f32");
  that(at::matmul(x.cpu(), x.cpu()).scalar_type() == at::kFloat, "the CPU is cast as well");
  at::autocast::set_autocast_enabled(c10::kCUDA, false);
}
