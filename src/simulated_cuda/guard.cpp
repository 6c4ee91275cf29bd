// The device interface that c10 calls: current device, streams and events.
#include "capture.h"
#include "host_waits.h"
#include "settings.h"
#include "stream.h"
#include "checks.h"
#include "faults.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

// `c10::cuda::warning_state()::warning_state_`: libtorch's reaction to a wait of the host: nothing
// (0), warn (1), an error (2).
extern "C" {
__attribute__((visibility("default"))) int sim_warning_state
    __asm__("_ZZN3c104cuda13warning_stateEvE14warning_state_") = 0;
}

namespace sim {

void host_waits() {
  TORCH_CHECK(sim_warning_state != 2, "called a synchronizing CUDA operation");
  if (sim_warning_state == 1) {
    TORCH_WARN("called a synchronizing CUDA operation");
  }
}

namespace {

using c10::Device;
using c10::DeviceIndex;

Device cuda(int index) { return Device(c10::kCUDA, static_cast<DeviceIndex>(index)); }
Stream& of(const c10::Stream& own) { return stream(own.device_index(), own.id()); }
int index_of(Device device) { return device.index() < 0 ? current_device() : device.index(); }

struct Event {
  std::mutex mutex;
  std::shared_ptr<Point> point;
  int device = 0;
  bool timing = false;
};

std::shared_ptr<Point> point_of(void* event) {
  auto* own = static_cast<Event*>(event);
  std::lock_guard<std::mutex> lock(own->mutex);
  return own->point;
}

// A lost device answers every event call with its error.
void throw_if_lost(void* event) { faults::throw_if_lost(static_cast<Event*>(event)->device); }

// The point of an event used by the host.
std::shared_ptr<Point> outside_of_captures(void* event) {
  unsafe_in_captures();
  throw_if_lost(event);
  auto point = point_of(event);
  TORCH_CHECK(!point->capture,
              "CUDA error: operation not permitted on an event last recorded in a capturing stream");
  return point;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(settings().devices);
  }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return cuda(current_device()); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.is_cuda(), "Expected a CUDA device, but got ", device);
    TORCH_CHECK(device.index() < settings().devices, "CUDA error: invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device() = device.index();
    }
  }

  c10::Stream getStream(Device device) const override {
    const int index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, cuda(index), current_stream_id(index));
  }
  c10::Stream getDefaultStream(Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, cuda(index_of(device)), 0);
  }
  c10::Stream getNewStream(Device device, int) const override {
    const int index = index_of(device);
    TORCH_CHECK(index < settings().devices, "CUDA error: invalid device ordinal");
    return c10::Stream(c10::Stream::UNSAFE, cuda(index), next_pool_stream(index).id);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    if (!high_priority) {
      return getNewStream(device, 0);
    }
    const int index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, cuda(index), next_high_priority_stream(index).id);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    current_stream_id(to.device_index()) = to.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream own) const override { return &of(own); }
  bool queryStream(const c10::Stream& own) const override {
    unsafe_in_captures();
    faults::throw_if_lost(own.device_index());
    return of(own).is_idle();
  }
  void synchronizeStream(const c10::Stream& own) const override {
    host_waits();
    of(own).synchronize();
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device() : device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& own) const override {
    c10::getDeviceAllocator(c10::kCUDA)->recordStream(data, own);
  }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& own, const DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == own.device_index(), "Event device index ", int(device),
                " does not match recording stream's device index ", int(own.device_index()), ".");
    if (*event == nullptr) {
      auto* fresh = new Event();
      fresh->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      fresh->device = own.device_index();
      *event = fresh;
    }
    auto* recorded = static_cast<Event*>(*event);
    auto point = of(own).record();
    std::lock_guard<std::mutex> lock(recorded->mutex);
    recorded->point = std::move(point);
  }
  void block(void* event, const c10::Stream& own) const override {
    if (event != nullptr) {
      of(own).wait(point_of(event));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || outside_of_captures(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) {
      return;
    }
    const auto point = outside_of_captures(event);
    point->wait();
    checks::host_waited(*point);
    throw_if_lost(event);
  }
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    TORCH_CHECK(from && to, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(static_cast<Event*>(from)->timing && static_cast<Event*>(to)->timing,
                "CUDA error: invalid resource handle (an event without timing)");
    throw_if_lost(from);
    const auto begin = point_of(from), end = point_of(to);
    TORCH_CHECK(begin->query() && end->query(), "CUDA error: device not ready");
    return (end->when - begin->when) * 1e3;
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace
}  // namespace sim

// For tests whose caller uses its own streams, which tch does not offer: a new stream; sets the
// calling thread's current stream, and returns the previous one.
extern "C" {
__attribute__((visibility("default"))) int64_t sim_new_stream(int device) {
  return sim::next_pool_stream(device).id;
}
__attribute__((visibility("default"))) int64_t sim_enter_stream(int device, int64_t id) {
  return std::exchange(sim::current_stream_id(device), id);
}
}
