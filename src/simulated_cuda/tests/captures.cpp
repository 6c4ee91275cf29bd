// CUDA graphs: what captures accept and refuse, and what replays do.
#include "graph.h"
#include "test.h"

using namespace test;
using at::cuda::CUDAGraph;

namespace {

void begin(CUDAGraph& graph, cudaStreamCaptureMode mode = kThreadLocal) {
  graph.capture_begin(at::cuda::graph_pool_handle(), mode);
}

// Runs `body` in a capture on its own stream; it must break the capture with this error.
void breaks(const std::function<void()>& body, const std::string& why) {
  CUDAGraph graph(false);
  Within in(new_stream());
  begin(graph);
  refused(body, why);
  refused([&] { graph.capture_end(); }, "previous error during capture");
}

}  // namespace

TEST(a_graph_runs_when_it_is_replayed) {
  auto x = at::ones({8}, on(0));
  CUDAGraph graph(false);
  Within in(new_stream());
  guard().synchronizeDevice(0);
  begin(graph);
  x.mul_(2);
  graph.capture_end();
  guard().synchronizeDevice(0);
  that(x.sum().item<float>() == 8, "it ran while it was captured");
  graph.replay();
  graph.replay();
  that(x.sum().item<float>() == 32, "two replays");
}

TEST(results_of_a_graph_have_the_memory_of_its_pool) {
  auto x = at::ones({1 << 20}, on(0));
  CUDAGraph graph(false);
  Within in(new_stream());
  guard().synchronizeDevice(0);
  begin(graph);
  auto y = x + 1;
  auto z = y + 1;
  y.reset();
  graph.capture_end();
  std::vector<at::Tensor> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(at::zeros({1 << 20}, on(0)));
  }
  graph.replay();
  for (const auto& other : others) {
    that(other.eq(0).all().item<bool>(), "a graph wrote into memory of others");
  }
  that(z.eq(3).all().item<bool>(), "wrong numbers");
}

TEST_UNDER(fresh_memory_of_a_graph_is_overwritten_in_every_replay, "checks=off") {
  const auto x = at::ones({1024}, on(0));
  CUDAGraph graph(false);
  Within in(new_stream());
  guard().synchronizeDevice(0);
  begin(graph);
  auto before = x + 1;
  before.reset();
  auto unwritten = at::empty({1024}, on(0));
  const auto y = unwritten + 1;
  unwritten.reset();
  graph.capture_end();
  for (int round = 0; round < 2; ++round) {
    graph.replay();
    that(y.isnan().all().item<bool>(), "what another temporary held was read");
  }
}

TEST(a_capture_refuses_that_the_host_waits) {
  const auto x = at::ones({8}, on(0));
  breaks([&] { x.sum().item<float>(); }, "operation not permitted when stream is capturing");
  breaks([&] { x.cpu(); }, "operation not permitted when stream is capturing");
  breaks([&] { guard().synchronizeDevice(0); }, "operation not permitted when stream is capturing");
  Point outside(new_stream());
  breaks([&] { outside.event.query(); }, "operation not permitted when stream is capturing");
  breaks([&] { guard().queryStream(new_stream()); }, "operation not permitted when stream is capturing");
}

TEST(a_capture_waits_for_nothing_outside) {
  Point outside(new_stream());
  breaks([&] { outside.event.block(current()); }, "uncaptured work in another stream");
}

TEST(streams_join_a_capture_and_have_to_come_back) {
  auto x = at::ones({8}, on(0));
  for (const bool comes_back : {true, false}) {
    CUDAGraph graph(false);
    const auto origin = new_stream(), side = new_stream();
    guard().synchronizeDevice(0);
    Within in(origin);
    begin(graph);
    Point(origin).event.block(side);
    {
      Within beside(side);
      x.add_(1);
    }
    if (comes_back) {
      Point(side).event.block(origin);
      graph.capture_end();
      graph.replay();
      that(x.sum().item<float>() == 16, "what the side stream had did not run");
    } else {
      refused([&] { graph.capture_end(); }, "unjoined work");
    }
  }
}

TEST(a_capture_begins_on_no_default_stream_and_ends_where_it_began) {
  CUDAGraph graph(false);
  refused([&] { begin(graph); }, "non-default stream");
  Within in(new_stream());
  begin(graph);
  {
    Within other(new_stream());
    refused([&] { graph.capture_end(); }, "same stream it began on");
  }
}

TEST(replays_draw_on_from_the_default_generator) {
  const auto draw = [](bool captured) {
    auto generator = at::globalContext().defaultGenerator(cuda(0));
    generator.set_current_seed(5);
    auto out = at::zeros({2, 16}, on(0));
    Within in(new_stream());
    guard().synchronizeDevice(0);
    if (captured) {
      CUDAGraph graph(false);
      auto row = at::zeros({16}, on(0));
      guard().synchronizeDevice(0);
      begin(graph);
      row.uniform_();
      graph.capture_end();
      for (int i = 0; i < 2; ++i) {
        graph.replay();
        out[i].copy_(row);
      }
      return out.cpu();
    }
    out[0].uniform_();
    out[1].uniform_();
    return out.cpu();
  };
  that(at::equal(draw(true), draw(false)), "other numbers than without a graph");
}

TEST(a_capture_draws_from_no_generator_that_was_made) {
  auto made = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA).getNewGenerator(0);
  auto x = at::zeros({16}, on(0));
  CUDAGraph graph(false);
  Within in(new_stream());
  begin(graph);
  refused([&] { x.uniform_(0, 1, made); }, "CUDA generator not in capture mode");
  x.zero_();
  graph.capture_end();
}
