// Tests of the simulated device itself, through libtorch as the project uses it.
//
// A file of tests has `TEST(name) { … }`; main.cpp runs them, each in a process of its own.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

struct Test {
  const char* name;
  void (*body)();
  // Settings after the number of devices, as in `GPIPE_SIMULATE_GPUS`.
  const char* settings;
};

std::vector<Test>& all();

struct Registered {
  Registered(const char* name, void (*body)(), const char* settings) { all().push_back({name, body, settings}); }
};

inline void that(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

// The message of the error that `body` throws; empty if it throws none.
std::string error_of(const std::function<void()>& body);
// Fails unless `body` throws an error whose message has `part`.
void refused(const std::function<void()>& body, const std::string& part);

inline c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::kCUDA); }
inline c10::Device cuda(int index) { return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)); }
inline at::TensorOptions on(int index) { return at::TensorOptions().device(cuda(index)).dtype(at::kFloat); }
inline c10::Stream new_stream(int device = 0) { return guard().getNewStream(cuda(device)); }
inline c10::Stream current(int device = 0) { return guard().getStream(cuda(device)); }

// Makes a stream the current one while it lives.
struct Within {
  explicit Within(c10::Stream stream) : before(guard().exchangeStream(stream)) {}
  ~Within() { guard().exchangeStream(before); }
  c10::Stream before;
};

// An event at the end of a stream.
struct Point {
  explicit Point(c10::Stream stream) : event(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT) { event.record(stream); }
  c10::Event event;
};

// Makes ones in a stream.
inline at::Tensor ones(c10::Stream stream, int64_t count = 1024) {
  Within in(stream);
  return at::ones({count}, on(stream.device_index()));
}

inline at::Tensor locked(int64_t count) {
  auto memory = at::empty({count}, at::TensorOptions().pinned_memory(true));
  memory.fill_(1);
  return memory;
}

// Makes a stream wait for all work of another.
inline void wait(c10::Stream stream, c10::Stream other) { Point(other).event.block(stream); }

// A stream that is held back as long as this lives.
struct Held {
  explicit Held(c10::Stream stream);
  ~Held();
};

// Keeps a stream busy for some milliseconds of host time.
void busy(c10::Stream stream);

}  // namespace test

#define TEST_UNDER(name, settings)                                     \
  static void name();                                                  \
  static test::Registered name##_registered(#name, &name, settings);   \
  static void name()
#define TEST(name) TEST_UNDER(name, "")
