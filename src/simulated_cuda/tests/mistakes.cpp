// Deliberate mistakes: each is found and named, whatever the timing.
#include "../checks.h"
#include "graph.h"
#include "test.h"

#include <initializer_list>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace test;

namespace {

void has(const std::string& said, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    that(said.find(word) != std::string::npos, std::string("no `") + word + "` in: " + said);
  }
}

// Checks that the error of a mistake contains these words.
void finds(const std::function<void()>& mistake, std::initializer_list<const char*> words) {
  const auto said = error_of(mistake);
  sim::checks::forget();
  has(said, words);
}

// Does so in a separate process, which the mistake ends.
void stops(const std::function<void()>& mistake, std::initializer_list<const char*> words) {
  int ends[2];
  that(pipe(ends) == 0, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    mistake();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t count; (count = read(ends[0], part, sizeof(part))) > 0;) {
    said.append(part, size_t(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  that(WIFSIGNALED(status), "it went on, and said: " + said);
  has(said, words);
}

void read_too_early() {
  const auto one = new_stream(), other = new_stream();
  const auto x = ones(one);
  Within in(other);
  const auto y = x + 1;
}

void write_too_early() {
  const auto one = new_stream(), other = new_stream();
  auto x = ones(one);
  wait(other, one);
  {
    Within in(other);
    const auto y = x + 1;
  }
  Within in(one);
  x.add_(1);
}

void both_write() {
  const auto one = new_stream(), other = new_stream();
  auto x = ones(one);
  Within in(other);
  x.zero_();
}

// The stream at the copy's destination does not know of later work there on another stream.
void copied_too_early() {
  const auto near = new_stream(0), far = new_stream(1), user = new_stream(1);
  const auto x = ones(near);
  Within one(near), other(far);
  const auto there = x.to(cuda(1), /*non_blocking=*/true);
  Within in(user);
  const auto y = there * 2;
}

// Without record_stream: the memory belongs to another tensor while the other stream reads it.
void handed_out_too_early() {
  const auto one = new_stream(), other = new_stream();
  auto x = ones(one);
  wait(other, one);
  {
    Within in(other);
    const auto y = x + 1;
  }
  x.reset();
  x = ones(one);
}

void not_written() {
  Within in(new_stream());
  const auto x = at::empty({64}, on(0));
  const auto y = x + 1;
}

void copied_and_not_written() {
  Within in(new_stream());
  const auto x = at::empty({64}, on(0)).clone();
  const auto y = x + 1;
}

void partly_written() {
  Within in(new_stream());
  const auto x = at::empty({8, 64}, on(0));
  x.narrow(0, 0, 7).zero_();
  const auto y = x.sum();
}

// A query that happens to find an event over is no wait.
void polled() {
  const auto one = new_stream(), other = new_stream();
  const auto x = ones(one);
  const Point point(one);
  while (!point.event.query()) {
  }
  Within in(other);
  const auto y = x + 1;
}

void back_too_early() {
  const auto out = new_stream(), back_stream = new_stream();
  const auto x = ones(out);
  auto host = locked(1024);
  {
    Within in(out);
    host.copy_(x, /*non_blocking=*/true);
  }
  Within in(back_stream);
  const auto back = host.to(cuda(0), /*non_blocking=*/true);
}

void host_reads_too_early() {
  const auto stream = new_stream();
  const auto x = ones(stream);
  auto host = locked(1024);
  Within in(stream);
  host.copy_(x, /*non_blocking=*/true);
  const auto first = host[0].item<float>();
  printf("%f\n", first);
}

void host_writes_too_early() {
  Within in(new_stream());
  auto host = locked(1024);
  const auto x = host.to(cuda(0), /*non_blocking=*/true);
  host.zero_();
}

struct Captured {
  explicit Captured(c10::Stream stream, const std::function<void()>& body) : graph(false), in(stream) {
    graph.capture_begin(at::cuda::graph_pool_handle(), kThreadLocal);
    try {
      body();
    } catch (...) {
      end();
      throw;
    }
    end();
  }
  void end() {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      // The body's own error says why.
    }
  }
  at::cuda::CUDAGraph graph;
  Within in;
};

void replayed_behind_its_input() {
  const auto stream = new_stream();
  auto x = ones(stream);
  at::Tensor y;
  Captured captured(stream, [&] { y = x + 1; });
  captured.graph.replay();
  x.reset();
  captured.graph.replay();
}

// Its memory was that of another temporary, which the same graph writes.
void not_written_in_a_graph() {
  const auto stream = new_stream();
  const auto x = ones(stream);
  at::Tensor y;
  Captured captured(stream, [&] {
    auto before = x + 1;
    before.reset();
    y = at::empty({1024}, on(0)) + 1;
  });
  captured.graph.replay();
}

void graph_is_not_waited_for() {
  const auto stream = new_stream();
  const auto x = ones(stream);
  at::Tensor y;
  Captured captured(stream, [&] { y = x + 1; });
  captured.graph.replay();
  Within in(new_stream());
  const auto z = y + 1;
}

// Rethrows the error of another thread.
void in_another_thread(const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) {
    std::rethrow_exception(error);
  }
}

void noted_in_a_capture() {
  const auto stream = new_stream(), other = new_stream();
  const auto x = ones(stream), theirs = ones(stream);
  Captured captured(stream, [&] {
    const auto y = x + 1;
    in_another_thread([&] { theirs.record_stream(other); });
  });
}

void foreign_work_in_a_capture() {
  const auto stream = new_stream();
  const auto x = ones(stream);
  Captured captured(stream, [&] {
    const auto y = x + 1;
    in_another_thread([&] {
      Within in(stream);
      const auto z = x * 2;
    });
  });
}

}  // namespace

TEST(a_read_that_does_not_wait_is_found) {
  finds(read_too_early, {"aten::add.out", "reads 4096 bytes", "aten::fill_.Scalar writes", "of cuda:0", "neither waits"});
}

TEST(a_write_that_does_not_wait_for_a_read_is_found) {
  finds(write_too_early, {"aten::add.out writes", "aten::add.out reads", "neither waits"});
}

TEST(a_write_that_does_not_wait_for_a_write_is_found) {
  finds(both_write, {"aten::zero_ writes", "aten::fill_.Scalar writes", "neither waits"});
}

TEST(a_use_that_does_not_wait_for_a_copy_is_found) {
  finds(copied_too_early, {"aten::mul", "copy_ between devices writes", "of cuda:1", "neither waits"});
}

TEST(memory_that_is_handed_out_under_a_reader_is_found) {
  finds(handed_out_too_early, {"aten::fill_.Scalar writes", "aten::add.out reads", "neither waits"});
}

TEST(memory_that_nobody_wrote_is_found) {
  finds(not_written, {"aten::add.out reads 256 bytes", "nobody has written"});
}

TEST(memory_that_nobody_wrote_is_found_in_its_copy) {
  finds(copied_and_not_written, {"aten::add.out reads 256 bytes", "nobody has written"});
}

TEST(a_row_that_nobody_wrote_is_found) {
  finds(partly_written, {"aten::sum", "reads 256 bytes", "nobody has written"});
}

TEST(an_event_that_happens_to_be_over_is_no_wait) { finds(polled, {"neither waits"}); }

TEST(a_way_back_that_does_not_wait_for_the_way_out_is_found) {
  finds(back_too_early, {"copy_ from page-locked memory reads", "copy_ to the host writes", "of the host", "neither waits"});
}

TEST(a_host_that_reads_what_is_on_its_way_is_stopped) {
  stops(host_reads_too_early, {"the host", "reads 4096 bytes", "copy_ to the host writes", "has not waited"});
}

TEST(a_host_that_writes_what_is_being_read_is_stopped) {
  stops(host_writes_too_early, {"the host", "writes 4096 bytes", "copy_ from page-locked memory reads", "has not waited"});
}

TEST(a_graph_that_outlives_its_input_is_found) {
  finds(replayed_behind_its_input, {"graph replay reads", "not in any memory"});
}

TEST(memory_of_a_graph_that_the_replay_has_not_written_is_found) {
  finds(not_written_in_a_graph, {"graph replay reads 4096 bytes", "nobody has written"});
}

TEST(a_graph_that_nobody_waits_for_is_found) {
  finds(graph_is_not_waited_for, {"aten::add", "reads", "graph replay writes", "neither waits"});
}

TEST(a_note_to_the_allocator_in_a_capture_is_found) {
  finds(noted_in_a_capture, {"tells the allocator", "captures a graph"});
}

TEST(work_of_others_in_a_capture_is_found) {
  finds(foreign_work_in_a_capture, {"aten::mul", "is capturing"});
}
