// Objects that libtorch looks up for CUDA by name.
#include "address_space.h"
#include "device_memory.h"
#include "generators.h"
#include "pinned_memory.h"
#include "settings.h"

#include <ATen/detail/CUDAHooksInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;

// libtorch finds the class by this name and no other: under another one `hasCUDA` stays false.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  long versionCUDART() const override { return 13000; }
  std::string showConfig() const override { return "simulated GPUs"; }

  int getNumGPUs() const override { return sim::settings().devices; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(getNumGPUs()); }
  void setCurrentDevice(DeviceIndex device) const override { sim::current_device() = device; }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(sim::current_device());
  }
  DeviceIndex current_device() const override { return getCurrentDevice(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    setCurrentDevice(device);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(DeviceIndex device) const override { sim::synchronize_device(device); }

  bool isPinnedPtr(const void* data) const override { return sim::is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return sim::pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return sim::device_allocator(); }
  Device getDeviceFromPtr(void* data) const override {
    return Device(c10::kCUDA, static_cast<DeviceIndex>(sim::device_of(data)));
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return sim::default_generator(device < 0 ? sim::current_device() : device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return sim::new_generator(device < 0 ? sim::current_device() : device);
  }
};

// Allocators of device and page-locked memory.
struct Registered {
  Registered() {
    c10::SetAllocator(c10::kCUDA, sim::device_allocator());
    at::setHostAllocator(c10::kCUDA, sim::pinned_allocator());
  }
} registered;

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}
