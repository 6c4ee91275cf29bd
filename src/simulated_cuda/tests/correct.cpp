// Correct programs, in which nothing may be reported.
#include "graph.h"
#include "test.h"

using namespace test;

TEST(streams_that_wait_are_right) {
  const auto one = new_stream(), other = new_stream();
  auto x = ones(one);
  wait(other, one);
  {
    Within inside(other);
    const auto y = x + 1;
  }
  wait(one, other);
  Within inside(one);
  x.add_(1);
}

TEST(a_wait_by_way_of_a_third_stream_is_right) {
  const auto one = new_stream(), middle = new_stream(), other = new_stream();
  const auto x = ones(one);
  wait(middle, one);
  wait(other, middle);
  Within inside(other);
  const auto y = x + 1;
}

TEST(what_the_host_has_waited_for_is_over) {
  const auto one = new_stream(), other = new_stream();
  const auto x = ones(one);
  Point(one).event.synchronize();
  Within inside(other);
  const auto sum = (x + 1).sum();
  const auto number = sum.item<float>();
  that(number == 2048, "as computed");
  Within back(one);
  const auto y = sum + 1;
}

TEST(memory_that_is_noted_is_right) {
  const auto one = new_stream(), other = new_stream();
  for (int round = 0; round < 50; ++round) {
    auto x = ones(one);
    wait(other, one);
    Within inside(other);
    x.record_stream(other);
    const auto y = x + 1;
  }
}

TEST(streams_may_use_parts_of_a_tensor) {
  const auto one = new_stream(), other = new_stream();
  auto x = ones(one, 64).view({8, 8});
  wait(other, one);
  {
    Within inside(other);
    x.narrow(0, 0, 4).add_(1);
    x.narrow(0, 4, 4).narrow(1, 0, 4).add_(1);
  }
  Within inside(one);
  x.narrow(0, 4, 4).narrow(1, 4, 4).add_(1);
}

TEST(a_copy_between_devices_waits_by_itself) {
  const auto near = new_stream(0), far = new_stream(1), user = new_stream(1);
  auto x = ones(near);
  at::Tensor there;
  {
    Within one(near), other(far);
    there = x.to(cuda(1), /*non_blocking=*/true);
  }
  x.reset();
  x = ones(near);
  wait(user, far);
  there.record_stream(user);
  Within inside(user);
  const auto y = there * 2;
}

TEST(page_locked_memory_may_be_used_when_it_is_waited_for) {
  const auto out = new_stream(), in = new_stream();
  for (int round = 0; round < 20; ++round) {
    auto x = ones(out);
    auto host = locked(1000);
    {
      Within inside(out);
      host.copy_(x.narrow(0, 0, 1000), /*non_blocking=*/true);
    }
    wait(in, out);
    Within inside(in);
    const auto back = host.to(cuda(0), /*non_blocking=*/true);
    const auto sum = back.sum().item<float>();
    that(sum == 1000, "as copied");
    host.zero_();
  }
}

// Two ranges share a page: one is being copied, the other was waited for.
TEST(what_is_beside_a_copy_in_its_page_may_be_read) {
  Within inside(new_stream());
  auto host = locked(64);
  const auto x = at::full({32}, 3, on(0)), y = at::full({32}, 4, on(0));
  host.narrow(0, 0, 32).copy_(x, /*non_blocking=*/true);
  Point(current()).event.synchronize();
  host.narrow(0, 32, 32).copy_(y, /*non_blocking=*/true);
  that(host[31].item<float>() == 3, "as copied");
}

TEST(graphs_that_are_waited_for_are_right) {
  const auto stream = new_stream(), other = new_stream();
  auto x = ones(stream);
  at::Tensor y;
  Within inside(stream);
  at::cuda::CUDAGraph graph(false);
  graph.capture_begin(at::cuda::graph_pool_handle(), kThreadLocal);
  {
    auto between = x + 1;
    between = between * 2;
    y = between + 1;
  }
  graph.capture_end();
  for (int round = 0; round < 3; ++round) {
    x.fill_(round);
    graph.replay();
    wait(other, stream);
    {
      Within inside(other);
      const auto z = y + 1;
      that(z.sum().item<float>() == 1024 * (2 * round + 4), "as computed");
    }
    wait(stream, other);
  }
}

// Ignored memory need not be written.
TEST(what_counts_for_nothing_need_not_be_written) {
  Within inside(new_stream());
  const auto x = at::ones({4, 4}, on(0));
  const auto y = at::addmm(at::empty({4, 4}, on(0)), x, x, /*beta=*/0);
  auto z = at::empty({4, 4}, on(0));
  z.copy_(y);
  at::empty_like(z).uniform_().add_(1);
  at::Tensor made = at::empty({0}, on(0));
  at::add_out(made, z, 1);
}

TEST(what_nobody_wrote_may_be_copied) {
  Within inside(new_stream());
  const auto copy = at::empty({64}, on(0)).clone();
  copy.zero_();
  const auto y = copy + 1;
}

TEST(what_nobody_wrote_may_be_copied_in_a_graph) {
  at::cuda::CUDAGraph graph(false);
  Within inside(new_stream());
  const auto x = ones(current());
  graph.capture_begin(at::cuda::graph_pool_handle(), kThreadLocal);
  auto before = x + 1;
  before.reset();
  const auto copy = at::empty({1024}, on(0)).clone();
  const auto filled = x * 2;
  copy.zero_();
  const auto sum = copy + filled;
  graph.capture_end();
  for (int round = 0; round < 2; ++round) {
    graph.replay();
    that(sum.sum().item<float>() == 2048, "as computed");
  }
}

// The second graph reads the first one's result, and has its own temporary in that memory.
TEST(graphs_of_one_pool_take_turns_in_its_memory) {
  const auto x = ones(current(), 8);
  const auto pool = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph first(false), second(false);
  Within inside(new_stream());
  guard().synchronizeDevice(0);
  at::Tensor between, out;
  first.capture_begin(pool, kThreadLocal);
  between = x + 1;
  first.capture_end();
  first.replay();
  second.capture_begin(pool, kThreadLocal);
  out = between + 1;
  between.reset();
  out = out + (x + 2);
  second.capture_end();
  second.replay();
  that(out.sum().item<float>() == 8 * 6, "as computed");
}
